"""What the machine did while a scope ran: one JSON line now and then, from a process of its own.

The sampler is a process, so that it neither shares an interpreter lock with what is measured nor dies with it; it ends
when the pipe to its parent closes. ``at`` is CLOCK_MONOTONIC, which every process of a machine shares, so a line can be
laid beside a round. Standard library, plus NVML where it can be imported; what cannot be read is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.machine.cpu_counters import CpuReader, CpuSample
from harness.machine.gpu_counters import GpuReader, GpuSample

SCHEMA = 1
INTERVAL_S = 1.0
END_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the machine. ``at`` in seconds of CLOCK_MONOTONIC; rates are since the line before."""

    at: float
    cpu: CpuSample
    gpus: tuple[GpuSample, ...] = ()
    schema: int = SCHEMA


@contextlib.contextmanager
def sampling(
    path: Path, *, watch: int, gpus: Sequence[str] = (), interval_s: float = INTERVAL_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Sample into ``path`` while the block runs. ``watch``: the process whose family counts as our own."""
    argv = [
        sys.executable,
        "-m",
        "harness.machine.telemetry",
        str(path),
        "--watch",
        str(watch),
        "--interval",
        str(interval_s),
    ]
    here = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}
    process = subprocess.Popen(
        [*argv, "--gpus", ",".join(gpus)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for what is measured; the sampler goes when its pipe closes
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def sample_until_closed(path: Path, watch: int, gpus: Sequence[str], interval_s: float, control: int) -> int:
    """Write lines into ``path`` until ``control`` (a pipe) closes; gives the number of lines."""
    cpu = CpuReader(watch)
    lines = 0
    with GpuReader(gpus) as cards, path.open("a", encoding="utf-8", newline="\n") as stream:
        while not select.select([control], [], [], interval_s)[0]:
            sample = Sample(time.monotonic(), cpu.read(), cards.read())
            stream.write(json.dumps(asdict(sample)) + "\n")
            stream.flush()
            lines += 1
    return lines


def read_samples(path: Path) -> list[Sample]:
    """The lines of a telemetry file; a last line that was cut by a crash is left out. Raises ``EvidenceError``."""
    samples = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            break
        try:
            samples.append(_sample(value))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise EvidenceError(f"{path}, line {number}: no look at the machine: {error}") from error
    return samples


def _sample(value: dict[str, Any]) -> Sample:
    """A line as a record; a figure is a finite number or not told."""
    cards = [dict(card) for card in value["gpus"]]
    told = [value["at"], *dict(value["cpu"]).values()]
    for card in cards:
        told += [figure for name, figure in card.items() if name not in ("uuid", "throttle")]
        card["uuid"], card["throttle"] = str(card["uuid"]), tuple(map(str, card["throttle"]))
    for figure in told:
        if figure is not None and not (isinstance(figure, (int, float)) and math.isfinite(figure)):
            raise ValueError(f"{figure!r} is no figure")
    gpus = tuple(GpuSample(**card) for card in cards)
    return Sample(float(value["at"]), CpuSample(**value["cpu"]), gpus, int(value["schema"]))


def between(samples: Sequence[Sample], start: float, end: float) -> list[Sample]:
    """The samples taken from ``start`` to ``end`` (CLOCK_MONOTONIC), and the one after: its rates reach back."""
    inside = [sample for sample in samples if start <= sample.at <= end]
    after = next((sample for sample in samples if sample.at > end), None)
    return inside if after is None else [*inside, after]


def main(arguments: Sequence[str]) -> None:
    """The sampler process: ``python -m harness.machine.telemetry FILE --watch PID``, until standard input closes."""
    parser = argparse.ArgumentParser(prog="harness.machine.telemetry")
    parser.add_argument("path", type=Path)
    parser.add_argument("--watch", type=int, required=True)
    parser.add_argument("--gpus", default="")
    parser.add_argument("--interval", type=float, default=INTERVAL_S)
    options = parser.parse_args(arguments)
    gpus = [uuid for uuid in options.gpus.split(",") if uuid]
    sample_until_closed(options.path, options.watch, gpus, options.interval, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
