"""Writing a file so that it is either whole or absent, and the one spelling of a digest."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError, UsageError, file_error

CHUNK = 1 << 20
_UTC = "%Y-%m-%dT%H:%M:%SZ"


def utc_now() -> str:
    """The time now as ``2026-01-31T12:00:00Z``."""
    return datetime.now(UTC).strftime(_UTC)


def is_utc(text: str) -> bool:
    """Whether ``text`` is a time as ``utc_now`` writes it."""
    try:
        return datetime.strptime(text, _UTC).strftime(_UTC) == text
    except ValueError:
        return False


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_limited(path: Path, limit: int) -> bytes:
    """A file's bytes. One that is longer than ``limit``, as a device without an end is, raises ``EvidenceError``."""
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise file_error(error, path, "read") from error
    if len(content) > limit:
        raise EvidenceError(f"{path}: more than the {limit} bytes that are read of such a file")
    return content


def json_bytes(value: Any) -> bytes:
    """``value`` as readable JSON with sorted keys; a NaN or infinity is refused, since JSON has none."""
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def outside_bundles(path: Path) -> Path:
    """``path``, unless it is or lies in a sealed bundle: a file more, even a lock, and the bundle is broken."""
    place = path.resolve()
    bundle = next((folder for folder in (place, *place.parents) if (folder / "bagit.txt").is_file()), None)
    if bundle is not None:
        raise UsageError(f"{path} lies in the bundle {bundle.name}, which is sealed", "write it beside the bundle")
    return path


def write_new(path: Path, content: bytes) -> None:
    """Write and fsync a file that must not exist yet."""
    with writing(path), path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def write_atomic(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: at every moment a reader sees the old file or the new one, whole.

    What is no regular file (a pipe, /dev/stdout) is written to, never replaced.
    """
    if path.exists() and not path.is_file():
        with writing(path):
            path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until nobody else of ours writes in ``folder``, made if need be. The folder itself is locked, not a file."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the path and the remedy when the block fails with an ``OSError`` (full disk, read-only folder)."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path, "write") from error
