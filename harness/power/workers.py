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

from harness.ab.repeat import Launch, Repeat, RepeatError, parse, pinned, repeat_name, run_repeat

DELAY_VARIABLE = "SM70_PLANT_DELAY"
ARMS_FILE = ("--arms-file", "suites/latency/power.toml")
WORKER = ("-m", "suites.latency.worker", *ARMS_FILE)
SERVER = ("-m", "suites.latency.serve", *ARMS_FILE)


class Workers(Protocol):
    """Makes repeats on the cores of one lane."""

    def repeat(self, side: str, arms: tuple[str, ...], number: int, delay: int) -> dict[str, Repeat]:
        """One repeat with ``delay`` per cent planted. ``RepeatError`` where it gives none."""
        ...


@dataclass(frozen=True)
class OneEach:
    """A process of its own for every repeat, as `harness ab` has it."""

    root: Path
    cores: tuple[int, ...]
    environment: Mapping[str, str]
    argv: tuple[str, ...] = (sys.executable, *WORKER)

    def repeat(self, side: str, arms: tuple[str, ...], number: int, delay: int) -> dict[str, Repeat]:
        """Start a worker."""
        environment = {**self.environment, DELAY_VARIABLE: str(delay)}
        return run_repeat(Launch(side, self.root, self.argv, environment, self.cores), arms, number)[1]


@dataclass(frozen=True)
class Forked:
    """A child of one server for every repeat: no start of an interpreter, no import."""

    server: subprocess.Popen[str]
    stdin: IO[str] = field(repr=False)
    stdout: IO[str] = field(repr=False)

    def repeat(self, side: str, arms: tuple[str, ...], number: int, delay: int) -> dict[str, Repeat]:
        """Ask the server."""
        who = f"repeat {number} of {side}"
        started = time.monotonic()
        self.stdin.write(json.dumps({"arms": arms, "delay": delay}) + "\n")
        self.stdin.flush()
        line = self.stdout.readline()
        if not line or line.startswith('{"failed"'):
            raise RepeatError(f"{who}: the forked worker failed: {line.strip() or 'the server is gone'}", crashed=True)
        return parse(line.encode(), who, repeat_name(number, arms), started, time.monotonic())


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
