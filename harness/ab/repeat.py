"""One repeat of some arms: a worker process on given cores, and what it printed, checked. Standard library only.

The harness knows a worker by its command line and its JSON alone: ``python -m suites.latency.worker ARM...`` in a work
tree prints one object an arm with token ids, timestamps and what makes the process unfit. Whatever is wrong with a
repeat (a crash, a clock that went backwards, a GPU that is gone) is a ``RepeatError`` that says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.model import ExitCode
from harness.process import signal_name

SECONDS_ALLOWED = 600.0
STDERR_TAIL = 1500


class RepeatError(HarnessError):
    """A repeat that gave no measurement. ``crashed``: the process itself failed, which is a fault of its side."""

    code = ExitCode.EVIDENCE_BROKEN

    def __init__(self, message: str, hint: str = "", *, crashed: bool = False) -> None:
        super().__init__(message, hint)
        self.crashed = crashed


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's generation: ``stamps`` are the first token's time, then each round's end, in host seconds."""

    name: str
    token_ids: tuple[int, ...]
    finish: str
    arrival: float
    stamps: tuple[float, ...]
    emitted: tuple[int, ...]

    @property
    def round_ms(self) -> list[float]:
        """Every round's own milliseconds, in order."""
        return [1000 * (end - start) for start, end in itertools.pairwise(self.stamps)]


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one process measured for one arm; ``started`` and ``ended`` in seconds of CLOCK_MONOTONIC.

    ``source`` names the file that keeps what the process printed.
    """

    source: str
    arm: str
    prompts: tuple[Prompt, ...]
    unfit: tuple[str, ...]
    started: float
    ended: float

    @property
    def rounds(self) -> list[float]:
        """All rounds of all prompts in order, in milliseconds."""
        return [value for prompt in self.prompts for value in prompt.round_ms]

    @property
    def round_ms(self) -> float:
        """Milliseconds of decoding a round over all prompts: prefill and the first token are outside."""
        return sum(self.rounds) / len(self.rounds)

    @property
    def emitted(self) -> list[int]:
        """Tokens that each round emitted, over all prompts in order."""
        return [count for prompt in self.prompts for count in prompt.emitted]

    @property
    def first_token_ms(self) -> float:
        """Mean milliseconds from a prompt's arrival to its first token."""
        return 1000 * sum(prompt.stamps[0] - prompt.arrival for prompt in self.prompts) / len(self.prompts)

    @property
    def sha256(self) -> str:
        """SHA-256 over the little-endian int32 ids of all prompts in order."""
        return tokens_sha256([prompt.token_ids for prompt in self.prompts])


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker of one side is started: where, with which interpreter and variables, on which cores."""

    side: str
    root: Path
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cores: tuple[int, ...] = ()
    descriptors: tuple[int, ...] = ()
    timeout_s: float = SECONDS_ALLOWED


def run_repeat(launch: Launch, arms: Sequence[str], number: int) -> tuple[bytes, dict[str, Repeat]]:
    """Repeat ``number`` of ``launch``'s side for ``arms``: the bytes it printed, and each arm's figures."""
    who = f"repeat {number} of {launch.side}"
    started = time.monotonic()
    printed = run_worker(launch, arms, who)
    repeats = parse(printed, who, repeat_name(number, arms), started, time.monotonic())
    if set(repeats) != set(arms):
        raise RepeatError(f"{who}: arms {', '.join(sorted(repeats))} were answered; {', '.join(arms)} were asked for")
    return printed, repeats


def run_worker(launch: Launch, arguments: Sequence[str], who: str) -> bytes:
    """What the worker printed. ``RepeatError`` with the end of its stderr when it failed, hung or could not start."""
    command = [*launch.argv, *arguments]
    try:
        with pinned(launch.cores, who):
            worker = subprocess.Popen(
                command,
                cwd=launch.root,
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=launch.descriptors,
            )
    except OSError as error:
        raise RepeatError(f"{who}: cannot start {command[0]}: {error.strerror or error}", crashed=True) from error
    try:
        printed, said = worker.communicate(timeout=launch.timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        raise RepeatError(f"{who}: no answer after {launch.timeout_s:g} s", crashed=True) from None
    except BaseException:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        raise
    if worker.returncode:
        code = worker.returncode
        ended = f"died of {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        tail = said.decode(errors="replace").strip()[-STDERR_TAIL:]
        raise RepeatError(f"{who}: {' '.join(command)} {ended}:\n{tail or '(it said nothing)'}", crashed=True)
    return printed


def repeat_name(number: int, arms: Sequence[str]) -> str:
    """The file of a repeat; number 0 is the warm-up."""
    return f"{number:03d}-{'+'.join(arms)}.json"


@contextlib.contextmanager
def pinned(cores: Sequence[int], who: str) -> Iterator[None]:
    """What is started inside runs on ``cores``: this thread stands on them meanwhile, and children inherit that."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
        moved = os.sched_getaffinity(0)
    except OSError:
        moved = set()
    if moved != set(cores):
        os.sched_setaffinity(0, before)
        raise RepeatError(f"{who}: cannot run on cores {sorted(cores)}; this process may use {sorted(before)}")
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def parse(printed: bytes, who: str, source: str, started: float = 0.0, ended: float = 0.0) -> dict[str, Repeat]:
    """The worker's JSON, one object an arm (or a list of them), as checked records by arm."""
    try:
        answer = json.loads(printed)
        rows = answer if isinstance(answer, list) else [answer]
        return {row["arm"]: _repeat(row, who, source, started, ended) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise RepeatError(f"{who}: its answer is not what a worker prints: {error!r}") from error


def _repeat(row: Mapping[str, Any], who: str, source: str, started: float, ended: float) -> Repeat:
    prompts = tuple(_prompt(run, who) for run in row["runs"])
    if not any(prompt.emitted for prompt in prompts):
        raise RepeatError(f"{who}: arm {row['arm']} has no round after a first token: there is nothing to time")
    return Repeat(source, row["arm"], prompts, tuple(map(str, row["unfit"])), started, ended)


def _prompt(run: Mapping[str, Any], who: str) -> Prompt:
    prompt = Prompt(
        str(run["prompt"]),
        tuple(map(int, run["token_ids"])),
        str(run["finish"]),
        float(run["arrival_ts"]),
        tuple(map(float, run["token_ts"])),
        tuple(map(int, run["emitted"])),
    )
    times = (prompt.arrival, *prompt.stamps)
    if not all(map(math.isfinite, times)):
        raise RepeatError(f"{who}: prompt {prompt.name!r} has a time that is no number")
    for earlier, later in itertools.pairwise(times):
        if later <= earlier:
            raise RepeatError(
                f"{who}: the clock did not move forwards: {later!r} s after {earlier!r} s in prompt {prompt.name!r}",
                "nothing timed with such a clock counts; look at the machine (virtual clock, suspended, stepped)",
            )
    if len(prompt.stamps) != len(prompt.emitted) + 1 or 1 + sum(prompt.emitted) != len(prompt.token_ids):
        raise RepeatError(
            f"{who}: prompt {prompt.name!r} has {len(prompt.token_ids)} tokens, {len(prompt.stamps)} times and rounds "
            f"of {sum(prompt.emitted)} tokens; a first token and its rounds do not add up to that"
        )
    return prompt


def tokens_sha256(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 over the little-endian int32 ids of all prompts in order."""
    return hashlib.sha256(b"".join(struct.pack(f"<{len(ids)}i", *ids) for ids in prompts)).hexdigest()
