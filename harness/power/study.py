"""Which trials a study has, which are done, and which comes next. Results are JSON lines, so a study can be resumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError, file_error
from harness.files import read_limited

SCHEMA = 2
SIZE_LIMIT = 64 << 20
TRIALS: Mapping[int, int] = {0: 40, 2: 20, 3: 20, 5: 20}
"""Per cent of delay -> how many trials at least."""

_TURNS = ((0, 2, 0, 3), (5,))
"""Delays come in turn, so that each has had its share whenever a study ends; those without a target come last."""


@dataclass(frozen=True, slots=True)
class Result:
    """One trial: what was planted, what each rule said, and the samples it said that of.

    ``log_ratios`` are our pairs (log of head over base, matched rounds), ``control`` our pairs of one build; ``base``
    and ``head`` the milliseconds per round of the same number of processes run one side after the other, on which the
    other rules are tried.
    """

    delay: int
    index: int
    ours: str
    ratio: float
    low: float | None
    high: float | None
    margin: float
    pairs: int
    first_token: str
    mann_whitney: str
    mann_whitney_p: float
    mean_threshold: str
    log_ratios: tuple[float, ...]
    control: tuple[float, ...]
    paired_base: tuple[float, ...]
    paired_head: tuple[float, ...]
    base: tuple[float, ...]
    head: tuple[float, ...]
    seconds: float
    cores: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Study:
    """All results of one file, and the machines that they were measured on (one, unless somebody mixed files)."""

    machines: tuple[dict[str, str], ...]
    results: tuple[Result, ...]


def next_trials(done: Iterable[Result]) -> list[tuple[int, int]]:
    """(delay, index) of every trial that is left, in the order in which they should be run."""
    have = {(result.delay, result.index) for result in done}
    place: Counter[int] = Counter()
    order = []
    for turn in _TURNS:
        while any(place[delay] < TRIALS[delay] for delay in turn):
            for delay in turn:
                if (delay, place[delay]) not in have and place[delay] < TRIALS[delay]:
                    order.append((delay, place[delay]))
                place[delay] += 1
    return order


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add one line and make it durable."""
    try:
        with path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(json.dumps({"schema": SCHEMA, **line}, allow_nan=False) + "\n")
            stream.flush()
    except OSError as error:
        raise file_error(error, path, "write") from error


def machine_line(facts: Mapping[str, str]) -> dict[str, Any]:
    """What says on which machine, and of which source, the lines below were measured."""
    kept = {
        key: value for key, value in facts.items() if not key.startswith(("memory.available", "cpu.load", "cpu.mhz"))
    }
    return {"kind": "machine", "facts": kept}


def result_line(result: Result) -> dict[str, Any]:
    """A result as a line."""
    return {"kind": "trial", **asdict(result)}


def read_study(path: Path) -> Study:
    """All lines of a results file. A last line that was cut is left out; anything else that is wrong is an error."""
    machines: list[dict[str, str]] = []
    results = []
    lines = read_limited(path, SIZE_LIMIT).split(b"\n") if path.exists() else []
    for number, text in enumerate(lines, 1):
        if not text and number == len(lines):
            break
        try:
            line: dict[str, Any] = json.loads(text)
            if line.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            kind = line.pop("kind")
            if kind == "machine" and line["facts"] not in machines:
                machines.append(line["facts"])
            elif kind == "trial":
                fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in line.items()}
                results.append(Result(**fields))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if number == len(lines):
                break
            raise EvidenceError(f"{path}, line {number}: not a line of a power study: {error!r}") from error
    return Study(tuple(machines), tuple(results))
