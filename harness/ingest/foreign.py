"""What was read from foreign files, before it becomes records; and the helpers that every reader shares."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import EvidenceError
from harness.junit import JUnitCase, fold
from harness.model import Assume, Better, CaseStatus
from harness.records import AnyLine, CaseEnd, CaseStart, MetricLine, SamplesLine, UnfitLine
from harness.stats import median
from harness.units import parse_number

SCHEMA = 1
_REPEAT = re.compile(r"(.*?)[-_.]?(?:run|rep|repeat|round|iter)[-_=.]?\d+", re.IGNORECASE)


@dataclass
class Series:
    """Replicates of one quantity so far, one number per file (or a process), with the rounds behind each."""

    unit: str
    better: Better
    values: list[float] = field(default_factory=list)
    rounds: list[tuple[float, ...]] = field(default_factory=list)


@dataclass
class Foreign:
    """All that some files of one tool say: ``facts`` about the machine, ``doubts`` about the files themselves."""

    tool: str
    cases: list[JUnitCase] = field(default_factory=list)
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    metrics: dict[tuple[str, str], MetricLine] = field(default_factory=dict)
    unfit: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def case(self, node: str, status: CaseStatus = CaseStatus.PASSED, reason: str = "") -> None:
        """Say how one case ended."""
        self.cases.append(JUnitCase((), "", node, status, None, reason))

    def sample(
        self, node: str, name: str, value: float | None, unit: str, better: Better, rounds: Iterable[float | None] = ()
    ) -> None:
        """Add one replicate; a value that is not known adds nothing but a doubt."""
        if value is None:
            self.doubts.append(f"{node}: {name} is not a number")
            return
        series = self.series.setdefault((node, name), Series(unit, better))
        if (series.unit, series.better) != (unit, better):
            raise EvidenceError(f"{node}: {name} is in {series.unit} in one file and in {unit} in another")
        series.values.append(value)
        series.rounds.append(tuple(number for number in rounds if number is not None))

    def metric(self, node: str, name: str, value: float | None, unit: str, *, exact: bool) -> None:
        """State a single number; what is not exact is shown and never judged."""
        if value is None:
            return
        assume = Assume.EXACT if exact else Assume.NOTHING
        line = MetricLine(
            schema=SCHEMA, node=node, name=name, value=value, unit=unit, better=Better.NEITHER, assume=assume
        )
        earlier = self.metrics.setdefault((node, name), line)
        if earlier.value != value:
            self.metrics[node, name] = line
            if exact:
                self.doubts.append(f"{node}: {name} is {earlier.value:g} in one file and {value:g} in another")

    def fact(self, key: str, value: object) -> None:
        """Note a fact about the machine; files that contradict each other leave it unknown."""
        if value in (None, ""):
            return
        text = str(value)
        if self.facts.setdefault(key, text) != text:
            self.facts[key] = "unknown"
            self.doubts.append(f"{key} differs between the files")


def to_lines(foreign: Foreign) -> list[AnyLine]:
    """The records of what was read, in an order that depends on nothing but the files."""
    lines: list[AnyLine] = []
    for node, reasons in foreign.unfit.items():
        lines += [UnfitLine(schema=SCHEMA, node=node, reason=reason) for reason in dict.fromkeys(reasons)]
    by_node: dict[str, list[AnyLine]] = {}
    for (node, name), series in foreign.series.items():
        by_node.setdefault(node, []).append(_samples(node, name, series))
    for (node, _), metric in foreign.metrics.items():
        by_node.setdefault(node, []).append(metric)
    for case in fold(foreign.cases):
        lines.append(CaseStart(schema=SCHEMA, node=case.node, group=""))
        lines += by_node.pop(case.node, [])
        lines.append(_end(case))
    if by_node:
        raise EvidenceError(f"{next(iter(by_node))}: numbers without a case")
    return lines


def _samples(node: str, name: str, series: Series) -> SamplesLine:
    raw = tuple(series.rounds) if any(series.rounds) else ()
    return SamplesLine(
        schema=SCHEMA,
        node=node,
        name=name,
        values=tuple(series.values),
        unit=series.unit,
        better=series.better,
        control="",
        rounds=raw,
        unfit=(),
    )


def _end(case: JUnitCase) -> CaseEnd:
    """Flaky is told as a pass after a rerun, as our own plugin tells it."""
    flaky = case.status is CaseStatus.FLAKY
    outcome: Any = "passed" if flaky else case.status.value
    reason = case.reason or ("" if outcome == "passed" else "no reason given")
    return CaseEnd(
        schema=SCHEMA,
        node=case.node,
        outcome=outcome,
        phases={},
        seconds=case.seconds,
        reason=reason,
        reruns=1 if flaky else 0,
    )


def case_name(path: Path) -> str:
    """What a file without names in it is about: its stem less a repeat's number, else its folder's name."""
    match = _REPEAT.fullmatch(path.stem)
    return path.stem if match is None else match[1] or path.parent.name or path.stem


def number(value: object) -> float | None:
    """A finite number from what JSON holds, typed strings included; ``None`` where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            as_float = float(value)
        except OverflowError:
            return None
        return as_float if math.isfinite(as_float) else None
    return parse_number(value.strip()) if isinstance(value, str) and len(value) <= 64 else None


def numbers(value: object) -> list[float]:
    """The numbers of a JSON list; what is none is left out."""
    return [found for found in map(number, value) if found is not None] if isinstance(value, list) else []


def middle(values: list[float]) -> float | None:
    """The median, or ``None`` of nothing."""
    return median(values) if values else None


def table(value: object) -> dict[str, Any]:
    """A JSON object; anything else counts as an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: object) -> list[dict[str, Any]]:
    """The objects of a JSON list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def text(value: object, default: str = "") -> str:
    """A string with content, or ``default``."""
    return value.strip() if isinstance(value, str) and value.strip() else default
