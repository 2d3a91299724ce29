"""The folder of one run: its lock, its scopes, what is finished and what can be resumed. Standard library only.

``artifacts/runs/<run-id>/run.json environment.json <scope>/{scope.json junit.xml records.jsonl log.txt}``; a scope
that was run again keeps its earlier tries in ``<scope>/attempts/<n>/``. A scope folder without ``scope.json`` is
unfinished.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import EvidenceError, UsageError, file_error
from harness.files import json_bytes, outside_bundles, utc_now, write_atomic, writing
from harness.typed import typed

SCHEMA = 1
ASIDE = ".earlier"  # where an earlier try lies while it moves; no scope is called so
SCOPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
SUITES = Path("suites")  # where scopes lie unless a command is told otherwise


def new_run_id() -> str:
    """A name that sorts by time and does not clash: ``20260131-120000-4f2a``."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class RunDir:
    """A run folder opened for writing (``open_run``); ``lock`` is held until this process and its child are gone."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock

    def scope(self, name: str) -> Path:
        """The folder of one scope."""
        return self.path / name

    def finished(self, name: str) -> bool:
        """Whether the scope's last try ran to its end."""
        record = read_scope_json(self.scope(name))
        return record is not None and record["state"] in ("finished", "not_run")

    def begin_attempt(self, name: str) -> tuple[Path, int]:
        """Make the scope's folder empty, moving an earlier try to ``attempts/<n>``; gives folder and try number.

        The try moves as one folder, by way of a name aside: killed at any step, the next call goes on from there.
        """
        folder, aside = self.scope(name), self.path / f"{name}{ASIDE}"
        attempts = folder / "attempts"
        with writing(folder):
            if folder.exists() and not aside.exists() and any(entry != attempts for entry in folder.iterdir()):
                folder.rename(aside)
            folder.mkdir(exist_ok=True)
            if aside.exists():
                if (aside / "attempts").exists():
                    (aside / "attempts").rename(attempts)
                attempts.mkdir(exist_ok=True)
                aside.rename(attempts / str(len(list(attempts.iterdir())) + 1))
            number = len(list(attempts.iterdir())) if attempts.exists() else 0
        return folder, number + 1


@contextlib.contextmanager
def open_run(path: Path, suites: Path = SUITES) -> Iterator[RunDir]:
    """Create or reopen a run folder, alone: a second harness on it is refused. A new one notes its ``suites``."""
    with writing(path):
        outside_bundles(path).mkdir(parents=True, exist_ok=True)
    with locked(path) as lock:
        about = path / "run.json"
        if not about.exists():
            if any(entry.name != ".lock" for entry in path.iterdir()):
                raise UsageError(
                    f"{path} is not empty and has no run.json", "give a new folder, or one of an earlier run"
                )
            made = {"schema": SCHEMA, "id": path.name, "created": utc_now(), "suites": str(suites)}
            write_atomic(about, json_bytes(made))
        yield RunDir(path, lock)


def resume_command(run: Path, scope: str) -> str:
    """The command line that finishes one scope of the run in ``run``, with the suites folder it was made with."""
    about = run / "run.json"
    suites = read_json(about).get("suites", str(SUITES)) if about.is_file() else str(SUITES)
    words = ["run", scope, "--resume", "--run-dir", str(run)]
    return typed(*(words if suites == str(SUITES) else [*words, "--suites", suites]))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock of a run folder; it falls when the last process that has it is gone, however that ended."""
    try:
        handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise file_error(error, path / ".lock", "open") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another harness, or a pytest it started, still works in {path}",
                "wait for it (fuser .lock names it), or give another --run-dir",
            ) from None
        yield handle
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ``EvidenceError`` names the file."""
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_said_once, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is text that nothing can write again
    except OSError as error:
        raise file_error(error, path, "read") from error
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: not valid JSON: {error}", "the file was cut or edited") from error
    if not isinstance(value, dict):
        raise EvidenceError(f"{path}: a JSON object is expected, found {type(value).__name__}")
    return value


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice some readers take the first value, some the last: it is refused."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return table


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that JSON has")


def read_scope_json(folder: Path) -> dict[str, Any] | None:
    """``scope.json`` of a scope folder, or ``None`` where the scope is unfinished."""
    path = folder / "scope.json"
    if not path.exists():
        return None
    value = read_json(path)
    if value.get("schema") != SCHEMA:
        raise EvidenceError(f"{path}: schema {value.get('schema')!r}, this harness reads {SCHEMA}")
    return value
