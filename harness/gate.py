"""From what was found to an exit code and its reasons. Pure: the code follows from the reasons, nothing is counted.

Order of gravity: what could not be run as asked (2), evidence that cannot be trusted (3), a regression (1), nothing
comparable (4), undecided (5, only under ``--strict``). Statements that change no code come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.compare import NOT_ASKED
from harness.model import PYTEST_USAGE, CaseStatus, OriginKind, ScopeSummary
from harness.verdict import CaseOutcome, CaseRow, Comparison, ExitCode, GateDecision, MetricOutcome, MetricRow, Policy

NAMED = 3  # of many cases or numbers, so many are named in a reason
_BAD_NUMBER = {
    MetricOutcome.WORSE: "{n} worse",
    MetricOutcome.CHANGED: "{n} changed",
    MetricOutcome.MISSING: "{n} no longer stated",
}
_GRAVITY = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.EVIDENCE_BROKEN,
    ExitCode.REGRESSION,
    ExitCode.NOTHING_COMPARABLE,
    ExitCode.UNDECIDED,
    ExitCode.OK,
)


@dataclass(frozen=True)
class Reason:
    """One sentence and the exit code that it asks for."""

    code: ExitCode
    text: str


def decide(comparison: Comparison, policy: Policy) -> GateDecision:
    """The verdict on a comparison."""
    reasons = [
        *_scope_reasons(comparison),
        *_case_reasons(comparison.cases),
        *_metric_reasons(comparison.metrics),
        *_comparability_reasons(comparison),
        *_unfit_reasons(comparison.metrics),
        *_doubts(comparison, policy),
        *_statements(comparison),
    ]
    return conclude(reasons)


def decide_run(summaries: Sequence[ScopeSummary]) -> GateDecision:
    """The verdict of ``harness run`` itself, before anything is compared."""
    reasons = []
    for summary in summaries:
        count = sum(summary.counts.values())
        if summary.problem:
            nothing = ExitCode.USAGE if summary.exit_code == PYTEST_USAGE else ExitCode.EVIDENCE_BROKEN
            code = ExitCode.REGRESSION if count else nothing
            reasons.append(Reason(code, f"scope {summary.scope}: {summary.problem}"))
        bad = [f"{summary.counts[kind]} {kind}" for kind in ("failed", "error", "crashed") if summary.counts.get(kind)]
        if bad:
            reasons.append(Reason(ExitCode.REGRESSION, f"scope {summary.scope}: {', '.join(bad)}"))
        elif summary.exit_code == 1 and not summary.problem:
            reasons.append(
                Reason(ExitCode.REGRESSION, f"scope {summary.scope}: pytest reports a failure outside any case")
            )
        if summary.origin.kind is OriginKind.NOT_RUN:
            reasons.append(Reason(ExitCode.OK, f"scope {summary.scope} was not run: {summary.origin.detail}"))
    return conclude(reasons)


def conclude(reasons: Iterable[Reason]) -> GateDecision:
    """The gravest reason gives the code; all are kept, gravest first."""
    ordered = sorted(reasons, key=lambda reason: _GRAVITY.index(reason.code))
    code = ordered[0].code if ordered else ExitCode.OK
    return GateDecision(code, tuple(reason.text for reason in ordered))


def _scope_reasons(comparison: Comparison) -> Iterable[Reason]:
    for row in comparison.scopes:
        if row.problem:
            code = ExitCode.REGRESSION if row.head_cases else ExitCode.EVIDENCE_BROKEN
            yield Reason(code, f"scope {row.scope}: {row.problem}")
        elif row.origin.kind is not OriginKind.NOT_RUN and not row.head_cases:
            yield Reason(ExitCode.EVIDENCE_BROKEN, f"scope {row.scope}: no case ran")


def regressed(row: CaseRow | MetricRow) -> bool:
    """Whether this row alone is a regression. A skip that the base does not contradict is a matter of coverage."""
    if isinstance(row, MetricRow):
        return row.outcome in _BAD_NUMBER
    if row.outcome is CaseOutcome.SKIPPED:
        return _newly_skipped(row)
    return row.outcome in (CaseOutcome.BROKEN, CaseOutcome.MISSING) or _newly_flaky(row)


def _case_reasons(rows: Sequence[CaseRow]) -> Iterable[Reason]:
    def some(matches: Callable[[CaseRow], bool], text: str) -> Iterable[Reason]:
        nodes = [row.node for row in rows if matches(row)]
        if nodes:
            yield Reason(ExitCode.REGRESSION, _counted(text, nodes))

    yield from some(lambda row: row.outcome is CaseOutcome.BROKEN and row.base is not None, "{n} broken")
    yield from some(lambda row: row.outcome is CaseOutcome.BROKEN and row.base is None, "{n} new and not passing")
    yield from some(lambda row: row.outcome is CaseOutcome.MISSING, "{n} missing")
    yield from some(_newly_skipped, "{n} skipped that passed at base")
    yield from some(_newly_flaky, "{n} flaky: failed, then passed")


def _newly_flaky(row: CaseRow) -> bool:
    return row.outcome is CaseOutcome.FLAKY and row.base is not CaseStatus.FLAKY


def _newly_skipped(row: CaseRow) -> bool:
    """A skip is never a pass; a case that the caller deselected was not asked for."""
    passed = row.base is not None and row.base.green
    return row.outcome is CaseOutcome.SKIPPED and passed and row.head is CaseStatus.SKIPPED


def _metric_reasons(rows: Sequence[MetricRow]) -> Iterable[Reason]:
    for outcome, text in _BAD_NUMBER.items():
        names = [f"{row.node} {row.name}" for row in rows if row.outcome is outcome]
        if names:
            yield Reason(ExitCode.REGRESSION, _counted(text, names, "number"))


def _comparability_reasons(comparison: Comparison) -> Iterable[Reason]:
    for asked in comparison.scopes:
        if asked.origin.kind is OriginKind.NOT_RUN and asked.origin.detail != NOT_ASKED:
            yield Reason(ExitCode.NOTHING_COMPARABLE, f"scope {asked.scope} was not run: {asked.origin.detail}")
    elsewhere = [row for row in comparison.differences if row.fatal and row.key == "device_key"]
    for row in elsewhere:
        scope = f"scope {row.scope}: " if row.scope else ""
        seen = f"{row.key} is {row.base} at base, {row.head} at head"
        todo = "; ingest with --device-key, or judge with --assume-comparable" if row.base == row.head else ""
        yield Reason(ExitCode.NOTHING_COMPARABLE, f"{scope}nothing is comparable: {seen}{todo}")
    if comparison.base and not any(row.base_cases is not None for row in comparison.scopes):
        yield Reason(ExitCode.NOTHING_COMPARABLE, f"nothing is comparable: {comparison.base} has no scope at all")


def _unfit_reasons(rows: Sequence[MetricRow]) -> Iterable[Reason]:
    """A profiled run that has a base to be judged against was asked a question it cannot answer."""
    unfit = [row for row in rows if row.outcome is MetricOutcome.INCOMPARABLE and row.kind == "samples" and row.unfit]
    if unfit:
        names = [f"{row.node} {row.name}: {row.unfit[0]}" for row in unfit]
        yield Reason(
            ExitCode.NOTHING_COMPARABLE, _counted("{n} not comparable, head is unfit for timing", names, "timing")
        )


def _doubts(comparison: Comparison, policy: Policy) -> Iterable[Reason]:
    undecided = [f"{row.node} {row.name}" for row in comparison.metrics if row.outcome is MetricOutcome.UNDECIDED]
    if undecided:
        yield Reason(
            ExitCode.UNDECIDED if policy.strict else ExitCode.OK, _counted("{n} undecided", undecided, "number")
        )


def _statements(comparison: Comparison) -> Iterable[Reason]:
    def say(text: str) -> Reason:
        return Reason(ExitCode.OK, text)

    if not comparison.base:
        yield say("there was nothing to compare with: only head's own results were judged")
    else:
        for scope in comparison.scopes:
            if scope.base_cases is None and scope.head_cases is not None:
                yield say(f"scope {scope.scope} is NEW: {comparison.base} does not have it")
            elif scope.head_cases is None and scope.origin.detail == NOT_ASKED:
                yield say(f"scope {scope.scope} is not part of this run")
    deselected = [
        row.node for row in comparison.cases if row.outcome is CaseOutcome.SKIPPED and row.head is CaseStatus.NOT_RUN
    ]
    if deselected:
        yield say(_counted("{n} deselected on the command line: this run is partial", deselected))
    apart = [row for row in comparison.metrics if row.outcome is MetricOutcome.INCOMPARABLE]
    if apart:
        yield say(_counted("{n} incomparable", [f"{row.node} {row.name}" for row in apart], "number"))
    quarantined = [row.node for row in comparison.cases if row.outcome is CaseOutcome.QUARANTINED]
    if quarantined:
        yield say(_counted("{n} in quarantine", quarantined))
    yield from (say(alarm) for alarm in comparison.alarms)


def _counted(text: str, names: Sequence[str], noun: str = "case") -> str:
    count = f"{len(names):,} {noun}{'s' if len(names) != 1 else ''}"
    shown = "; ".join(names[:NAMED]) + (f"; and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
    return f"{text.format(n=count)}: {shown}"
