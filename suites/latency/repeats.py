"""Repeats of an arm, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.latency.figures import PromptRun

ROOT = Path(__file__).resolve().parents[2]
SECONDS_ALLOWED = 120


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one worker process measured for one arm."""

    runs: tuple[PromptRun, ...]
    peak_rss_bytes: int
    unfit: tuple[str, ...]


def run_worker(arguments: Sequence[str], environment: dict[str, str] | None = None) -> Any:
    """The JSON that a worker prints. AssertionError with the end of its stderr when it fails."""
    command = _command(arguments)
    with _late_is_told(command):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            timeout=SECONDS_ALLOWED,
            check=False,
        )
    return _printed(command, done.returncode, done.stdout, done.stderr)


def run_once(arms: Sequence[str]) -> dict[str, Repeat]:
    """One repeat of arms that share a process, by arm."""
    return _by_arm(run_worker(arms))


class Waiting:
    """A worker that imports the engine, then sleeps until it is told to measure ``arms``."""

    def __init__(self, arms: Sequence[str]) -> None:
        """Starts the process."""
        self._command = _command(["--wait", *arms])
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)

    def until_ready(self) -> None:
        """Wait until it sleeps. AssertionError when it ends instead, or takes too long."""
        assert self._process.stdout is not None
        came, _, _ = select.select([self._process.stdout], [], [], SECONDS_ALLOWED)
        if not came:
            raise AssertionError(f"{' '.join(self._command)} was not ready after {SECONDS_ALLOWED} s")
        if not self._process.stdout.readline():
            self.measure()  # it has ended: says why

    def measure(self) -> dict[str, Repeat]:
        """Let it measure, once, and wait for its end: one repeat by arm."""
        with _late_is_told(self._command):
            printed, said = self._process.communicate(b"go\n", timeout=SECONDS_ALLOWED)
        return _by_arm(_printed(self._command, self._process.returncode, printed, said))

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def waiting_workers(orders: Sequence[Sequence[str]]) -> Iterator[list[Waiting]]:
    """A worker for each order of arms, all of them asleep: importing torch takes a core for seconds, sleeping none.

    As many get ready at a time as there are cores. What is left then is to measure, one after the other.
    """
    cores = len(os.sched_getaffinity(0))
    workers: list[Waiting] = []
    try:
        for start in range(0, len(orders), cores):
            workers += (started := [Waiting(arms) for arms in orders[start : start + cores]])
            for worker in started:
                worker.until_ready()
        yield workers
    finally:
        for worker in workers:
            worker.end()


@contextlib.contextmanager
def _late_is_told(command: Sequence[str]) -> Iterator[None]:
    """A worker that takes too long most often wants for a processor: said with how many want one."""
    try:
        yield
    except subprocess.TimeoutExpired:
        wanted, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        raise AssertionError(
            f"{' '.join(command)} did not end within {SECONDS_ALLOWED} s; {wanted:.1f} processes want {cores} "
            "processors: `python -m harness doctor` names them, measure again when they are gone"
        ) from None


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "suites.latency.worker", *arguments]


def _printed(command: Sequence[str], code: int, printed: bytes, said: bytes) -> Any:
    if code:
        raise AssertionError(f"{' '.join(command)} ended with {code}:\n{said.decode(errors='replace')[-2000:]}")
    return json.loads(printed)


def _by_arm(answers: list[dict[str, Any]]) -> dict[str, Repeat]:
    return {answer["arm"]: _repeat(answer) for answer in answers}


def _repeat(answer: dict[str, Any]) -> Repeat:
    runs = tuple(
        PromptRun(
            prompt=run["prompt"],
            token_ids=tuple(run["token_ids"]),
            finish=run["finish"],
            arrival_ts=run["arrival_ts"],
            token_ts=tuple(run["token_ts"]),
            emitted=tuple(run["emitted"]),
        )
        for run in answer["runs"]
    )
    return Repeat(runs, answer["peak_rss_bytes"], tuple(answer["unfit"]))
