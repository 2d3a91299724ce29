"""``scope.json`` as it is read to be judged: typed, so that what does not fit is refused with the path to it.

Running writes it with the standard library alone (``run.py``, ``ingest``, ``ab``); ``rundir.read_scope_json`` reads it
there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.errors import EvidenceError
from harness.model import Origin, OriginKind
from harness.rundir import SCHEMA, read_scope_json


class OriginFields(msgspec.Struct):
    """An ``Origin`` both of whose fields have to be there."""

    kind: OriginKind
    detail: str


class ScopeFile(msgspec.Struct, kw_only=True):
    """How one try of a scope ended. ``counts``: the outcomes that the runner saw go by, where it ran pytest."""

    schema: int
    scope: str
    state: Literal["finished", "interrupted", "timeout", "refused", "not_run"]
    told: OriginFields = msgspec.field(name="origin")
    attempt: int
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    seconds: float | None = None
    problem: str = ""
    partial: bool = False
    counts: dict[str, int] = {}
    ab: dict[str, Any] | None = None
    ingested: dict[str, Any] | None = None

    @property
    def origin(self) -> Origin:
        return Origin(self.told.kind, self.told.detail)

    def __post_init__(self) -> None:
        if (self.state == "not_run") != (self.origin.kind is OriginKind.NOT_RUN):
            raise ValueError(f"its state is {self.state} and its origin {self.origin.kind}")


KILLED = ScopeFile(
    schema=SCHEMA, scope="", state="interrupted", told=OriginFields(OriginKind.FRESH, ""), attempt=0, problem="killed"
)
"""What is known of a try that was killed before it could write the file."""


def read_scope_file(folder: Path) -> ScopeFile | None:
    """The file of a scope's folder, or ``None`` where the try is unfinished. Raises ``EvidenceError``."""
    value = read_scope_json(folder)
    if value is None:
        return None
    try:
        return msgspec.convert(value, ScopeFile)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"{folder / 'scope.json'}: not as this harness writes it: {error}") from error
