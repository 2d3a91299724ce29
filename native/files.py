"""Whole-file reads and writes that a reader or an interruption never sees half done."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write beside `path`, sync, rename over it: a reader sees the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_if_changed(path: Path, text: str) -> None:
    """Write `text` unless the file already holds it: its time stamp then says when it last changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        replace_file(path, text.encode())
