"""One child process in its own group: started, watched, interrupted, never left behind. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.model import PYTEST_USAGE

POLL_S = 0.2
GRACE_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How a child ended: its return code (negative: the signal), and whether we had to end it."""

    return_code: int
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    leftovers: bool = False


def run_child(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    keep_open: Sequence[int],
    tick: Callable[[], None],
) -> Ended:
    """Run ``argv`` to its end with its output in ``log``, calling ``tick`` a few times a second.

    Ctrl-C is passed on as SIGINT to the whole group, which gets ``GRACE_S`` to write its files; a second Ctrl-C kills
    it. ``keep_open`` are descriptors the child inherits (a lock that shall outlive us if we are killed).
    """
    start = time.monotonic()
    with log.open("ab") as stream:
        child = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=tuple(keep_open),
        )
    timed_out = interrupted = False
    try:
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            tick()
            if time.monotonic() - start > timeout_s:
                timed_out = True
                _end(child)
    except KeyboardInterrupt:
        interrupted = True
        _end(child)
    leftovers = _kill_group(child.pid)
    return Ended(child.wait(), time.monotonic() - start, timed_out, interrupted, leftovers)


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGINT and a grace period, then SIGKILL; a Ctrl-C meanwhile shortens the grace to nothing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        _kill_group(child.pid)
        child.wait()


def _kill_group(group: int) -> bool:
    """Kill what is left of a group; True if anything was."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or only an ended process that awaits its parent
        return False
    return True


def exit_problem(ended: Ended, timeout_s: float) -> str:
    """What is wrong with the process as a whole, in a sentence; empty when pytest ran its cases to the end."""
    if ended.interrupted:
        return "interrupted"
    if ended.timed_out:
        return f"pytest was ended after its limit of {timeout_s:g} s"
    if ended.return_code < 0:
        return f"pytest died of {signal_name(-ended.return_code)}"
    if ended.return_code == PYTEST_USAGE:
        return "pytest refused to run as asked (exit code 4)"
    return {
        0: "",
        1: "",
        2: "pytest was interrupted (exit code 2)",
        3: "pytest met an internal error (exit code 3)",
        5: "pytest collected no case (exit code 5)",
    }.get(ended.return_code, f"the pytest process ended with exit code {ended.return_code}")


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
