"""The wording of a report: Comparison + GateDecision + Evidence -> Document. Pure; opens no file, draws nothing."""

from __future__ import annotations

from collections import Counter

from harness.model import (
    CaseOutcome,
    CaseStatus,
    Comparison,
    Evidence,
    ExitCode,
    GateDecision,
    MetricOutcome,
    OriginKind,
)
from harness.report.document import Count, Document, Fact, Tone, Verdict
from harness.report.sections import changes, coverage, evidence, limits, timing
from harness.report.sections.rows import Footnotes
from harness.report.words import EXIT_MEANING, count, listed, number, visible

_WORDS = {
    ExitCode.OK: ("No regression", Tone.GOOD),
    ExitCode.REGRESSION: ("Regression", Tone.BAD),
    ExitCode.USAGE: ("Usage error", Tone.BAD),
    ExitCode.EVIDENCE_BROKEN: ("Evidence broken", Tone.BAD),
    ExitCode.NOTHING_COMPARABLE: ("Nothing comparable", Tone.DOUBT),
    ExitCode.UNDECIDED: ("Undecided", Tone.DOUBT),
    ExitCode.INTERRUPTED: ("Interrupted", Tone.DOUBT),
}


def build_document(comparison: Comparison, decision: GateDecision, head: Evidence, base: Evidence | None) -> Document:
    """Everything the report says, in reading order: verdict, changes, timing, coverage, evidence, limits, footnotes.

    ``head`` and ``base`` are the two sides that ``comparison`` was made of; ``base`` is ``None`` where no baseline is
    accepted yet. The decision is taken as it stands: wording judges nothing.
    """
    footnotes = Footnotes()
    sections = (
        changes.section(comparison, footnotes),
        timing.section(comparison, head, base, footnotes),
        coverage.section(comparison, head),
        evidence.section(comparison, head, base),
        limits.section(comparison, head),
    )
    return Document(
        title=f"{visible(head.label)} against {visible(base.label) if base else 'no baseline'}",
        verdict=_verdict(comparison, decision, head, base),
        subject=_subject(head, base),
        sections=sections,
        footnotes=footnotes.texts,
    )


def _subject(head: Evidence, base: Evidence | None) -> tuple[Fact, ...]:
    commit = visible(head.commit[:12]) or "unknown commit"
    return (
        Fact("Head", visible(head.label)),
        Fact("Base", visible(base.label) if base else "none accepted yet"),
        Fact("Device key", visible(head.device_key), code=True),
        Fact("Commit", f"{commit}, work tree changed" if head.dirty_digest else commit),
        Fact("Measured", visible(head.created) or "time not recorded"),
    )


def _verdict(comparison: Comparison, decision: GateDecision, head: Evidence, base: Evidence | None) -> Verdict:
    cases = Counter(row.outcome for row in comparison.cases)
    metrics = Counter(row.outcome for row in comparison.metrics)
    if decision.code is ExitCode.OK and not _compared(comparison):
        word, tone = "Nothing to compare with", Tone.DOUBT
        sentence = (
            f"No baseline stands for {visible(head.device_key)} yet: {_size(cases, metrics)} are new, "
            "and nothing is said to be unchanged."
        )
    else:
        word, tone = _WORDS[decision.code]
        sentence = _sentence(
            decision.code, cases, metrics, f"against {visible(base.label)}" if base else "with no base"
        )
    return Verdict(
        word=word,
        sentence=sentence,
        tone=tone,
        exit_code=int(decision.code),
        exit_meaning=EXIT_MEANING[decision.code],
        reasons=tuple(visible(reason) for reason in decision.reasons),
        counts=_counts(comparison, cases, metrics, head),
    )


def _compared(comparison: Comparison) -> bool:
    """Whether anything at all stood on both sides, or stood in the base and vanished."""
    return any(row.base is not None for row in comparison.cases) or any(
        row.outcome is not MetricOutcome.NEW for row in comparison.metrics
    )


def _size(cases: Counter[CaseOutcome], metrics: Counter[MetricOutcome]) -> str:
    return f"{count(cases.total(), 'case')} and {count(metrics.total(), 'metric')}"


def _sentence(code: ExitCode, cases: Counter[CaseOutcome], metrics: Counter[MetricOutcome], against: str) -> str:
    """The verdict in one or two sentences, for a comparison that had something to compare."""
    size = _size(cases, metrics)
    if code is ExitCode.OK:
        doubt = metrics[MetricOutcome.UNDECIDED] + metrics[MetricOutcome.INCOMPARABLE]
        rest = f" {count(doubt, 'metric')} could not be compared or decided." if doubt else ""
        return f"{size} {against}: none broken, missing or worse.{rest}"
    if code is ExitCode.REGRESSION:
        return f"{_bad_tally(cases, metrics)}, {against}."
    if code is ExitCode.NOTHING_COMPARABLE:
        return (
            f"{size} {against}, and no time among them can be compared. "
            "What cannot be compared is neither a pass nor a regression."
        )
    if code is ExitCode.UNDECIDED:
        undecided = f"{number(metrics[MetricOutcome.UNDECIDED])} of {count(metrics.total(), 'metric')}"
        return f"{undecided} cannot be decided {against}, and --strict does not let that pass."
    if code is ExitCode.EVIDENCE_BROKEN:
        return "The evidence cannot be trusted as it stands, so the code is not judged."
    if code is ExitCode.INTERRUPTED:
        return f"The run was stopped before its end; {size} had been seen by then."
    return "The command could not be understood, so nothing was judged."


def _bad_tally(cases: Counter[CaseOutcome], metrics: Counter[MetricOutcome]) -> str:
    found = [(cases[outcome], "case", outcome.value) for outcome in (CaseOutcome.BROKEN, CaseOutcome.MISSING)]
    found += [
        (metrics[outcome], "metric", outcome.value)
        for outcome in (MetricOutcome.WORSE, MetricOutcome.CHANGED, MetricOutcome.MISSING)
    ]
    parts = [f"{count(n, thing)} {word.lower()}" for n, thing, word in found if n]
    return listed(parts) or "A regression that is no row of the comparison; see the reasons"


def _counts(
    comparison: Comparison, cases: Counter[CaseOutcome], metrics: Counter[MetricOutcome], head: Evidence
) -> tuple[Count, ...]:
    statuses = Counter(case.status for scope in head.scopes for case in scope.cases)
    total, passed = statuses.total(), statuses[CaseStatus.PASSED]
    idle = sum(row.origin.kind is OriginKind.NOT_RUN for row in comparison.scopes)
    missing = cases[CaseOutcome.MISSING] + metrics[MetricOutcome.MISSING]
    worse = metrics[MetricOutcome.WORSE] + metrics[MetricOutcome.CHANGED]
    doubt = metrics[MetricOutcome.UNDECIDED] + metrics[MetricOutcome.INCOMPARABLE]

    def tally(n: int, word: str, of: str, tone: Tone) -> Count:
        return Count(number(n), word, of, tone if n else Tone.QUIET)

    of_metrics = f"of {count(metrics.total(), 'metric')}"
    return (
        Count(
            number(passed),
            "passed",
            f"of {count(total, 'case')}",
            Tone.GOOD if total and passed == total else Tone.PLAIN,
        ),
        tally(cases[CaseOutcome.BROKEN], "broken", f"of {count(cases.total(), 'case')}", Tone.BAD),
        tally(missing, "missing", "cases and metrics", Tone.BAD),
        tally(worse, "worse or changed", of_metrics, Tone.BAD),
        tally(doubt, "not decided", of_metrics, Tone.DOUBT),
        tally(idle, "not run", f"of {count(len(comparison.scopes), 'scope')}", Tone.DOUBT),
    )


__all__ = ["build_document"]
