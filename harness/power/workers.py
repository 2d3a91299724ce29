"""Where a trial's repeats come from: a process each, or forks of one process that has imported the engine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from harness.ab.errors import RepeatError
from harness.ab.repeat import Launch, Repeat, pinned, read, repeat_name, run_repeat
from harness.ab.together import run_together

DELAY_VARIABLE = "SM70_PLANT_DELAY"
ARMS_FILE = ("--arms-file", "suites/latency/power.toml")
WORKER = ("-m", "suites.latency.worker", *ARMS_FILE)
SERVER = ("-m", "suites.latency.serve", *ARMS_FILE)
Names = tuple[str, ...]


class Workers(Protocol):
    """Makes repeats on the cores of one lane."""

    def repeats(self, sides: Names, arms: Names, labels: Names, delays: Sequence[int]) -> list[dict[str, Repeat]]:
        """One repeat of each side, of two that take turns, with so many per cent planted in each.

        ``RepeatError`` where one gives none.
        """
        ...


@dataclass(frozen=True)
class OneEach:
    """A process of its own for every repeat, as `harness ab` has it."""

    root: Path
    cores: tuple[int, ...]
    environment: Mapping[str, str]
    argv: tuple[str, ...] = (sys.executable, *WORKER)

    def repeats(self, sides: Names, arms: Names, labels: Names, delays: Sequence[int]) -> list[dict[str, Repeat]]:
        """Start a worker each."""
        launches = [
            Launch(side, self.root, self.argv, {**self.environment, DELAY_VARIABLE: str(delay)}, self.cores)
            for side, delay in zip(sides, delays, strict=True)
        ]
        if len(launches) == 1:
            return [run_repeat(launches[0], arms, labels[0])[1]]
        return [repeats for _, repeats in run_together(launches, arms, labels)]


@dataclass(frozen=True)
class Forked:
    """A child of one server for every repeat: no start of an interpreter, no import."""

    server: subprocess.Popen[str]
    stdin: IO[str] = field(repr=False)
    stdout: IO[str] = field(repr=False)

    def repeats(self, sides: Names, arms: Names, labels: Names, delays: Sequence[int]) -> list[dict[str, Repeat]]:
        """Ask the server."""
        who = [f"repeat {label} of {side}" for label, side in zip(labels, sides, strict=True)]
        started = time.monotonic()
        self.stdin.write(json.dumps({"arms": arms, "delays": delays}) + "\n")
        self.stdin.flush()
        line = self.stdout.readline()
        if not line:
            raise RepeatError(f"{who[0]}: the server of forked workers is gone", crashed=True)
        ended = time.monotonic()
        found = []
        for name, label, answer in zip(who, labels, json.loads(line), strict=True):
            if "failed" in answer:
                raise RepeatError(f"{name}: the forked worker ended with {answer['failed']}", crashed=True)
            found.append(read(json.dumps(answer).encode(), arms, name, repeat_name(label, arms), started, ended))
        return found


@contextlib.contextmanager
def workers(
    root: Path, cores: tuple[int, ...], environment: Mapping[str, str], *, forked: bool, argv: Sequence[str] = ()
) -> Iterator[Workers]:
    """Workers of one lane; a server ends with the block. ``argv`` replaces our own worker or server."""
    if not forked:
        yield OneEach(root, cores, environment, tuple(argv) or (sys.executable, *WORKER))
        return
    with pinned(cores, "the server"):
        server = subprocess.Popen(
            list(argv) or [sys.executable, *SERVER],
            cwd=root,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield Forked(server, server.stdin, server.stdout)
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()
