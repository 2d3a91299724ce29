"""The one way in which a repeat fails."""

from __future__ import annotations

from harness.errors import HarnessError
from harness.verdict import ExitCode


class RepeatError(HarnessError):
    """A repeat that gave no measurement. ``crashed``: the process itself failed, which is a fault of its side."""

    code = ExitCode.EVIDENCE_BROKEN

    def __init__(self, message: str, hint: str = "", *, crashed: bool = False) -> None:
        super().__init__(message, hint)
        self.crashed = crashed
