"""Runs scopes: one pytest process each, its output kept, its end recorded whatever happens. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import Interrupted, UsageError
from harness.files import json_bytes, utc_now, write_atomic, writing
from harness.machine.environment import write_environment
from harness.machine.observe import Watch
from harness.model import PYTEST_USAGE, Origin, OriginKind, ScopeSummary
from harness.process import Ended, exit_problem, run_child
from harness.progress import RecordTail, ScopeProgress
from harness.rundir import SCHEMA, SCOPE_NAME, RunDir, read_scope_json

TAIL_LINES = 30
DEFAULT_TIMEOUT_S = 3600.0
MIN_FREE_BYTES = 16 << 20
Tick = Callable[[ScopeProgress], None]


@dataclass(frozen=True)
class ScopeRun:
    """What to run: the scope's folder under ``suites``, from ``root``, with extra pytest arguments."""

    scope: str
    root: Path
    suites: Path
    pytest_args: tuple[str, ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    only: tuple[str, ...] = ()
    watch: Watch = field(default_factory=Watch)


def run_scope(request: ScopeRun, run: RunDir, tick: Tick) -> ScopeSummary:
    """Run one scope in its own pytest process and record how it ended. Raises ``Interrupted`` after Ctrl-C."""
    folder, attempt = run.begin_attempt(request.scope)
    open_outputs(folder)
    write_environment(folder / "environment.json", request.root)
    argv = pytest_argv(request, folder)
    tail = RecordTail(folder, request.scope)
    started = utc_now()
    with request.watch.over(folder):
        ended = run_child(
            argv,
            cwd=request.root,
            environment=child_environment({**os.environ, **request.watch.environment}),
            log=folder / "log.txt",
            timeout_s=request.timeout_s,
            keep_open=(run.lock, *request.watch.descriptors),
            tick=lambda: tick(tail.read()),
        )
    progress = tail.read()
    merge_worker_records(folder)
    summary = summarise(request, folder, ended, progress)
    summary = replace(summary, problem=summary.problem or request.watch.lost())
    write_scope_json(folder, request, argv, started, ended, summary, attempt)
    if ended.interrupted:
        raise Interrupted(f"scope {request.scope} was interrupted after {progress.done} of {progress.total} cases")
    return summary


def run_scopes(
    requests: Sequence[ScopeRun],
    run: RunDir,
    tick: Tick,
    *,
    resume: bool = False,
    reruns: int = 0,
    done: Callable[[ScopeSummary], None],
) -> list[ScopeSummary]:
    """Run each scope in turn; ``resume`` passes over finished ones, ``reruns`` tries failing cases again (flaky?)."""
    summaries = []
    for request in requests:
        if resume and run.finished(request.scope):
            summaries.append(stored_summary(run.scope(request.scope)))
            done(summaries[-1])
            continue
        summary = run_scope(request, run, tick)
        for _ in range(reruns):
            if not summary.failed or summary.problem:
                break
            again = replace(request, only=summary.failed)
            summary = run_scope(again, run, tick)
        summaries.append(summary)
        done(summary)
    return summaries


def mark_not_run(scope: str, reason: str, run: RunDir, root: Path) -> ScopeSummary:
    """Record that a scope was asked for and could not be run, and why."""
    folder, attempt = run.begin_attempt(scope)
    write_environment(folder / "environment.json", root)
    origin = Origin(OriginKind.NOT_RUN, reason)
    record = {
        "schema": SCHEMA,
        "scope": scope,
        "state": "not_run",
        "origin": {"kind": origin.kind.value, "detail": reason},
        "attempt": attempt,
        "started": utc_now(),
    }
    write_atomic(folder / "scope.json", json_bytes(record))
    return ScopeSummary(scope, origin, None, None, {})


def known_scopes(suites: Path) -> list[str]:
    """The scopes a suites folder offers: its subfolders that hold ``test_*.py``."""
    if not suites.is_dir():
        raise UsageError(f"there is no folder {suites}", "run from the repository root, or give --suites")
    folders = (folder for folder in suites.iterdir() if folder.is_dir() and SCOPE_NAME.fullmatch(folder.name))
    return sorted(folder.name for folder in folders if next(folder.rglob("test_*.py"), None))


def pytest_argv(request: ScopeRun, folder: Path) -> list[str]:
    """The exact command line of the scope's pytest process, with paths relative to the root where that is possible."""
    output = _relative(folder, request.root)
    if request.only:
        with writing(folder / "only.txt"):
            (folder / "only.txt").write_text("".join(f"{node}\n" for node in request.only), encoding="utf-8")
        targets = [f"@{output}/only.txt"]
    else:
        targets = [_relative(request.suites / request.scope, request.root)]
    fixed = ["-p", "harness.pytest_plugin", "--evidence", output, "--junitxml", f"{output}/junit.xml"]
    steady = [
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "--rootdir",
        ".",
        "-o",
        "junit_duration_report=call",
    ]
    return [sys.executable, "-m", "pytest", *targets, *fixed, *steady, *request.pytest_args]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, with this harness importable by name."""
    here = str(Path(__file__).resolve().parent.parent)
    paths = [here, *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def open_outputs(folder: Path) -> None:
    """Touch every file the run will write, so that a full disk or a read-only folder shows before the long run."""
    for name in ("log.txt", "records.jsonl"):
        with writing(folder / name):
            (folder / name).touch()
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise UsageError(
            f"{folder} has {free >> 20} MiB free and a run needs at least {MIN_FREE_BYTES >> 20} MiB",
            "free some space, or give --run-dir on another disk",
        )


def merge_worker_records(folder: Path) -> None:
    """Fold the files of xdist workers into ``records.jsonl``: in whole, or not at all if we are killed meanwhile."""
    workers = sorted(folder.glob("records.*.jsonl"))
    if not workers:
        return
    lines = []
    for path in [folder / "records.jsonl", *workers]:
        content = path.read_bytes()
        lines.append(content if content.endswith(b"\n") or not content else content + b"\n")
    write_atomic(folder / "records.jsonl", b"".join(lines))
    for path in workers:
        path.unlink()


def summarise(request: ScopeRun, folder: Path, ended: Ended, progress: ScopeProgress) -> ScopeSummary:
    """The summary that is printed as soon as the scope has ended."""
    counts = Counter(progress.outcomes.values())
    problem = exit_problem(ended, request.timeout_s)
    if ended.return_code == PYTEST_USAGE and (said := pytests_own_words(folder)):
        problem += f": {said}"
    if problem and progress.open_cases and not ended.interrupted:
        problem += f" while {progress.open_cases[-1]} was open"
        counts["crashed"] = len(progress.open_cases)
    return ScopeSummary(
        request.scope, Origin(), ended.return_code, ended.seconds, dict(counts), tuple(progress.failed), problem
    )


def pytests_own_words(folder: Path) -> str:
    """The error that pytest ended with, from its log."""
    found = re.findall(r"(?im)^.*?\berror: (.+)$", (folder / "log.txt").read_text(encoding="utf-8", errors="replace"))
    return found[-1].strip() if found else ""


def write_scope_json(
    folder: Path,
    request: ScopeRun,
    argv: Sequence[str],
    started: str,
    ended: Ended,
    summary: ScopeSummary,
    attempt: int,
) -> None:
    """Record how the process ended; its presence is what makes a scope finished."""
    state = "interrupted" if ended.interrupted else "timeout" if ended.timed_out else "finished"
    if state == "finished" and ended.return_code == PYTEST_USAGE:
        state = "refused"  # nothing was measured: to be run again, not to be judged
    tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    record = {
        "schema": SCHEMA,
        "scope": request.scope,
        "state": state,
        "origin": {"kind": OriginKind.FRESH.value, "detail": ""},
        "argv": list(argv),
        "exit_code": ended.return_code,
        "seconds": round(ended.seconds, 3),
        "started": started,
        "finished": utc_now(),
        "attempt": attempt,
        "partial": bool(request.only),
        "problem": summary.problem,
        "counts": summary.counts,
        "failed": list(summary.failed),
        "leftover_processes": ended.leftovers,
        "log_tail": tail,
    }
    write_atomic(folder / "scope.json", json_bytes(record))


def stored_summary(folder: Path) -> ScopeSummary:
    """The summary of a scope that finished in an earlier call."""
    record = read_scope_json(folder)
    if record is None:
        raise UsageError(f"{folder} has no scope.json")
    origin = Origin(OriginKind(record["origin"]["kind"]), record["origin"]["detail"])
    return ScopeSummary(
        record["scope"],
        origin,
        record.get("exit_code"),
        record.get("seconds"),
        record.get("counts", {}),
        tuple(record.get("failed", ())),
        record.get("problem", ""),
        fresh=False,
    )


def _relative(path: Path, root: Path) -> str:
    resolved, base = path.resolve(), root.resolve()
    return str(resolved.relative_to(base)) if resolved.is_relative_to(base) else str(resolved)
