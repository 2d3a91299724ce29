"""Nightly runs in the order of their time: what went wrong in each, and what went wrong again. Pure.

One bad night is no news: it may be the machine. A finding counts when the latest nights agree in it, each measured by
processes of its own. A night is judged by its own verdict against the baseline; where the baseline is silent (a case
or a time that it does not hold yet), by comparison with the last green night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.compare import compare
from harness.gate import regressed
from harness.model import Evidence
from harness.verdict import CaseOutcome, CaseRow, Comparison, ExitCode, GateDecision, MetricOutcome, MetricRow, Policy

NIGHTS_TO_CONFIRM = 2
_GREEN = (ExitCode.OK, ExitCode.UNDECIDED)
_SILENT = (CaseOutcome.NEW, MetricOutcome.NEW)
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is worse than it was: a row of a comparison, or a scope that is no clean run (``problem``)."""

    scope: str
    row: CaseRow | MetricRow | None = None
    problem: str = ""

    @property
    def key(self) -> Key:
        """What it is about, whatever became of it: scope, case, metric."""
        if self.row is None:
            return self.scope, "", ""
        return self.scope, self.row.node, self.row.name if isinstance(self.row, MetricRow) else ""


@dataclass(frozen=True, slots=True)
class Night:
    """One run, with its own verdict. ``green_before`` is the place of the last green night before it, if any."""

    evidence: Evidence
    decision: GateDecision
    findings: tuple[Finding, ...]
    green_before: int | None

    @property
    def green(self) -> bool:
        """Whether a later night may be held against this one."""
        return self.decision.code in _GREEN and not self.findings


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A finding of the last ``nights`` nights, all in a row, as the latest of them tells it."""

    finding: Finding
    nights: int


def judge_nights(runs: Iterable[tuple[Evidence, Comparison, GateDecision]]) -> tuple[Night, ...]:
    """Nights out of the runs of one device, each with its own verdict, oldest first."""
    nights: list[Night] = []
    green: int | None = None
    for head, verdict, decision in sorted(runs, key=lambda run: (run[0].created, run[0].label)):
        beside = None if green is None else compare(nights[green].evidence, head, Policy())
        nights.append(Night(head, decision, tuple(_findings(verdict, beside)), green))
        if nights[-1].green:
            green = len(nights) - 1
    return tuple(nights)


def confirmed(nights: Sequence[Night], needed: int = NIGHTS_TO_CONFIRM) -> tuple[Confirmed, ...]:
    """What the last ``needed`` nights or more agree in, what has lasted longest first."""
    if not nights:
        return ()
    keys = [{finding.key for finding in night.findings} for night in reversed(nights)]
    held = []
    for finding in nights[-1].findings:
        lasted = next((back for back, found in enumerate(keys) if finding.key not in found), len(keys))
        if lasted >= needed:
            held.append(Confirmed(finding, lasted))
    return tuple(sorted(held, key=lambda streak: -streak.nights))


def bad_in_a_row(nights: Sequence[Night]) -> int:
    """How many of the latest nights are not green."""
    return next((back for back, night in enumerate(reversed(nights)) if night.green), len(nights))


def _findings(verdict: Comparison, beside: Comparison | None) -> Iterable[Finding]:
    for scope in verdict.scopes:
        if scope.problem:
            yield Finding(scope.scope, problem=scope.problem)
    yield from _regressed(verdict)
    if beside is not None:
        silent = {Finding(row.scope, row).key for row in _rows(verdict) if row.outcome in _SILENT}
        unknown = {row.scope for row in verdict.scopes if row.base_cases is None}
        # What vanished from a scope without a baseline is in no row of its verdict.
        yield from (found for found in _regressed(beside) if found.key in silent or found.scope in unknown)


def _regressed(comparison: Comparison) -> Iterable[Finding]:
    return (Finding(row.scope, row) for row in _rows(comparison) if regressed(row))


def _rows(comparison: Comparison) -> Iterable[CaseRow | MetricRow]:
    yield from comparison.cases
    yield from comparison.metrics
