"""What a build leaves, and where: the library, and beside it the record of how it was built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA = 1
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "artifacts" / "native"
LIBRARY_NAME = "libsm70.so"
RECORD_NAME = "build.json"


def read_record(out_dir: Path = DEFAULT_OUT) -> dict[str, Any] | None:
    """The build record in `out_dir`, or None when there is none of this schema."""
    try:
        record = json.loads((out_dir / RECORD_NAME).read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None
