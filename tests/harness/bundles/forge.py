"""What a forger does to a sealed bundle: change its contents, then mend every digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.bundles import bag


def reseal(folder: Path) -> None:
    """Mend every digest after a change, as a forger would."""
    for name in (*bag.TAG_FILES, bag.TAG_MANIFEST):
        (folder / name).unlink()
    bag.finish(folder, {"Bagging-Date": "2026-01-01"})


def change_json(path: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "data" / path).read_text())
        change(content)
        (folder / "data" / path).write_text(json.dumps(content))

    return spoil


def replace(path: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / "data" / path).read_text()
        assert old in text
        (folder / "data" / path).write_text(text.replace(old, new))

    return spoil
