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

from harness.ab.errors import RepeatError
from harness.ab.waits import Waits
from harness.process import signal_name

SECONDS_ALLOWED = 600.0
STDERR_TAIL = 1500


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt's generation: ``stamps`` are the first token's time, then each round's end, in seconds.

    Where turns were taken, ``arrival`` and ``stamps`` are of a clock that stands while the other side runs. ``at`` are
    the same moments on the host's own clock.
    """

    name: str
    token_ids: tuple[int, ...]
    finish: str
    arrival: float
    stamps: tuple[float, ...]
    emitted: tuple[int, ...]
    at: tuple[float, ...] = ()

    @property
    def round_ms(self) -> list[float]:
        """Every round's own milliseconds, in order."""
        return [1000 * (end - start) for start, end in itertools.pairwise(self.stamps)]


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one process measured for one arm; ``started`` and ``ended`` in seconds of CLOCK_MONOTONIC.

    ``source`` names the file that keeps what the process printed. ``turns`` counts how often it waited for its turn,
    ``alone`` the steps that it made when the other side had ended.
    """

    source: str
    arm: str
    prompts: tuple[Prompt, ...]
    unfit: tuple[str, ...]
    started: float
    ended: float
    turns: int = 0
    alone: int = 0

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


def run_repeat(launch: Launch, arms: Sequence[str], label: str) -> tuple[bytes, dict[str, Repeat]]:
    """One repeat of ``launch``'s side for ``arms``: the bytes it printed, and each arm's figures."""
    who = f"repeat {label} of {launch.side}"
    started = time.monotonic()
    printed = run_worker(launch, arms, who)
    return printed, read(printed, arms, who, repeat_name(label, arms), started, time.monotonic())


def read(printed: bytes, arms: Sequence[str], who: str, source: str, started: float, ended: float) -> dict[str, Repeat]:
    """What a worker printed that was asked for ``arms``, checked."""
    repeats = parse(printed, who, source, started, ended)
    if set(repeats) != set(arms):
        raise RepeatError(f"{who}: arms {', '.join(sorted(repeats))} were answered; {', '.join(arms)} were asked for")
    return repeats


def run_worker(launch: Launch, arguments: Sequence[str], who: str) -> bytes:
    """What the worker printed. ``RepeatError`` with the end of its stderr when it failed, hung or could not start."""
    return finish(start(launch, arguments, who), launch.timeout_s, who)


def start(
    launch: Launch, arguments: Sequence[str], who: str, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A worker that runs now, in a process group of its own; ``descriptors`` stay open in it."""
    command = [*launch.argv, *arguments]
    try:
        with pinned(launch.cores, who):
            return subprocess.Popen(
                command,
                cwd=launch.root,
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=(*launch.descriptors, *descriptors),
            )
    except OSError as error:
        raise RepeatError(f"{who}: cannot start {command[0]}: {error.strerror or error}", crashed=True) from error


def finish(worker: subprocess.Popen[bytes], timeout_s: float, who: str) -> bytes:
    """What the worker printed by its end; it is killed when it takes longer or when we are interrupted."""
    try:
        printed, said = worker.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end(worker)
        raise RepeatError(f"{who}: no answer after {timeout_s:g} s", crashed=True) from None
    except BaseException:
        end(worker)
        raise
    if worker.returncode:
        code = worker.returncode
        ended = f"died of {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        tail = said.decode(errors="replace").strip()[-STDERR_TAIL:]
        command = " ".join(map(str, worker.args)) if isinstance(worker.args, list) else str(worker.args)
        raise RepeatError(f"{who}: {command} {ended}:\n{tail or '(it said nothing)'}", crashed=True)
    return printed


def end(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and its children, whatever they are at."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()


def repeat_name(label: str, arms: Sequence[str]) -> str:
    """The file of a repeat; 000 is the warm-up."""
    return f"{label}-{'+'.join(arms)}.json"


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
    turns = row.get("turns", {"steps": 1, "waits": (), "alone": 0})
    waits = Waits([(float(begin), float(end)) for begin, end in turns["waits"]], who, int(turns["steps"]))
    prompts = tuple(_prompt(run, who, waits) for run in row["runs"])
    if not any(prompt.emitted for prompt in prompts):
        raise RepeatError(f"{who}: arm {row['arm']} has no round after a first token: there is nothing to time")
    unfit = tuple(map(str, row["unfit"]))
    return Repeat(source, row["arm"], prompts, unfit, started, ended, len(waits), int(turns["alone"]))


def _prompt(run: Mapping[str, Any], who: str, waits: Waits) -> Prompt:
    name = str(run["prompt"])
    at = (float(run["arrival_ts"]), *map(float, run["token_ts"]))
    if not all(map(math.isfinite, at)):
        raise RepeatError(f"{who}: prompt {name!r} has a time that is no number")
    for earlier, later in itertools.pairwise(at):
        if later <= earlier:
            raise RepeatError(
                f"{who}: the clock did not move forwards: {later!r} s after {earlier!r} s in prompt {name!r}",
                "nothing timed with such a clock counts; look at the machine (virtual clock, suspended, stepped)",
            )
    waits.check_rounds(at[1:], name)
    arrival, *stamps = map(waits.left_out, at)
    prompt = Prompt(
        name,
        tuple(map(int, run["token_ids"])),
        str(run["finish"]),
        arrival,
        tuple(stamps),
        tuple(map(int, run["emitted"])),
        at[1:],
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
