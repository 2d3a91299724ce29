"""Words of the harness <-> JSON, typed both ways: what does not fit its record is refused with the path to it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.errors import EvidenceError

_Record = TypeVar("_Record")


def encode(record: Any) -> bytes:
    """A record as JSON, laid out for people; equal records give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=1) + b"\n"


def decode(content: bytes, kind: type[_Record], name: str) -> _Record:
    """A record of ``kind`` from JSON called ``name``; an illegal one is refused as it would be in code."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"{name}: {error}", "the file was cut or edited, or another harness wrote it") from error
