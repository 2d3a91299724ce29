"""What another engine publishes of a 27B model on V100s. Never pooled with ours: another model, another machine."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[2] / "baselines" / "published" / "v100-dflash2-20260906.toml"


def published(section: str) -> dict[str, Any]:
    """One section of the file. Raises ``KeyError`` for one that it does not have."""
    sections: dict[str, dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return sections[section]
