"""What the harness raises: every error carries the exit code it ends in and a line on what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path

from harness.verdict import ExitCode


class HarnessError(Exception):
    """An error a person can act on. ``str()`` says what was seen and what is allowed, ``hint`` what to do."""

    code = ExitCode.EVIDENCE_BROKEN

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(HarnessError):
    """The command line asked for something that does not exist or does not go together."""

    code = ExitCode.USAGE


class EvidenceError(HarnessError):
    """A file of evidence is damaged, foreign, or contradicts another one."""

    code = ExitCode.EVIDENCE_BROKEN


class Interrupted(HarnessError):
    """Ctrl-C or SIGTERM: what was finished is kept, the rest can be resumed."""

    code = ExitCode.INTERRUPTED


def file_error(error: OSError, path: Path | str, doing: str) -> HarnessError:
    """Turn an ``OSError`` met while ``doing`` something to ``path`` into an error that says what to do.

    Evidence that cannot be read is broken evidence (3). A place that cannot be written says nothing against any
    evidence: something that the command needs is missing (2), at the start of a run as in sealing.
    """
    hints = {
        errno.ENOSPC: "free some space (results already written are kept) and run it again",
        errno.EDQUOT: "your disk quota is used up: free some space and run it again",
        errno.EROFS: "that file system is read-only: choose another folder",
        errno.EACCES: "you may not write or read there: choose another folder or change its permissions",
        errno.EPERM: "you may not write or read there: choose another folder or change its permissions",
        errno.ENOENT: "check the path",
        errno.EFBIG: "the file grew over the limit of this file system or shell (ulimit -f)",
    }
    reason = error.strerror or str(error)
    kind = EvidenceError if doing == "read" else UsageError
    return kind(f"cannot {doing} {path}: {reason}", hints.get(error.errno or 0, ""))
