"""The wording of a report: Comparison + GateDecision + Evidence -> Document. Pure; opens no file, draws nothing."""

from __future__ import annotations

from collections import Counter

from harness.model import CaseStatus, Evidence, OriginKind
from harness.report.document import Count, Document, Fact, Tone, Verdict
from harness.report.sections import changes, coverage, evidence, limits, timing
from harness.report.sections.changes import Changes, tally
from harness.report.sections.rows import Footnotes
from harness.report.words import EXIT_MEANING, count, number, visible
from harness.verdict import CaseOutcome, Comparison, ExitCode, GateDecision, MetricOutcome

_WORDS = {
    ExitCode.OK: ("No regression", Tone.GOOD),
    ExitCode.REGRESSION: ("Regression", Tone.BAD),
    ExitCode.USAGE: ("Usage error", Tone.BAD),
    ExitCode.EVIDENCE_BROKEN: ("Evidence broken", Tone.BAD),
    ExitCode.NOTHING_COMPARABLE: ("Nothing comparable", Tone.DOUBT),
    ExitCode.UNDECIDED: ("Undecided", Tone.DOUBT),
    ExitCode.INTERRUPTED: ("Interrupted", Tone.DOUBT),
}


_FOOT = (
    "The records behind this are in the bundle: comparison.json, and every scope's junit.xml, records.jsonl, log.txt."
)


def build_document(comparison: Comparison, decision: GateDecision, head: Evidence, base: Evidence | None) -> Document:
    """Everything the report says, in reading order: verdict, changes, timing, coverage, evidence, limits, footnotes.

    ``head`` and ``base`` are the two sides that ``comparison`` was made of; ``base`` is ``None`` where no baseline is
    accepted yet. The decision is taken as it stands: wording judges nothing.
    """
    footnotes = Footnotes()
    changed = changes.sorted_out(comparison)
    sections = (
        changes.section(comparison, changed, footnotes),
        timing.section(comparison, head, base, footnotes),
        coverage.section(comparison, head, footnotes),
        evidence.section(comparison, head, base),
        limits.section(comparison, head),
    )
    return Document(
        kind="Evidence report",
        stamp=(visible(head.device_key), visible(head.created) or "time not recorded"),
        foot=_FOOT,
        title=f"{visible(head.label)} against {visible(base.label) if base else 'no baseline'}",
        verdict=_verdict(comparison, changed, decision, head, base),
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


def _verdict(
    comparison: Comparison, changed: Changes, decision: GateDecision, head: Evidence, base: Evidence | None
) -> Verdict:
    word, tone = _WORDS[decision.code]
    compared = _compared(comparison)
    if not compared and decision.code is ExitCode.OK:
        word, tone = "Nothing to compare with", Tone.DOUBT
    if compared and decision.code is ExitCode.NOTHING_COMPARABLE:
        word = "Not all comparable"
    return Verdict(
        word=word,
        sentence=_sentence(comparison, changed, decision, head, base, compared=compared),
        tone=tone,
        ending=f"exit {int(decision.code)} ({EXIT_MEANING[decision.code]})",
        reasons=tuple(visible(reason) for reason in decision.reasons),
        counts=_counts(comparison, head),
    )


def _compared(comparison: Comparison) -> bool:
    """Whether anything stood on both sides and was set against each other."""
    return any(row.base is not None and row.head is not None for row in comparison.cases) or any(
        row.outcome not in (MetricOutcome.NEW, MetricOutcome.MISSING, MetricOutcome.INCOMPARABLE)
        for row in comparison.metrics
    )


def _sentence(
    comparison: Comparison,
    changed: Changes,
    decision: GateDecision,
    head: Evidence,
    base: Evidence | None,
    *,
    compared: bool,
) -> str:
    """The verdict in one or two sentences."""
    size = f"{count(len(comparison.cases), 'case')} and {count(len(comparison.metrics), 'metric')}"
    against = f"against {visible(base.label)}" if base else "with no base"
    first = visible(decision.reasons[0]) if decision.reasons else ""
    doubt = sum(row.outcome in (MetricOutcome.UNDECIDED, MetricOutcome.INCOMPARABLE) for row in changed.doubtful)
    if decision.code is ExitCode.OK and not compared:
        absent = f"{visible(base.label)} has none of these scopes" if base else "There is no base to compare with yet"
        return f"{absent}: {size} are new, and none is called unchanged."
    if decision.code is ExitCode.OK:
        idle = sum(row.head is CaseStatus.NOT_RUN for row in comparison.cases)
        unrun = f" {count(idle, 'case')} did not run." if idle else ""
        rest = f" {count(doubt, 'metric')} could not be compared or decided." if doubt else ""
        return f"{size} {against}: none broken, missing or worse.{unrun}{rest}"
    if decision.code is ExitCode.REGRESSION:
        return f"{tally(changed.regressed)}, {against}." if changed.regressed else f"{against.capitalize()}: {first}."
    if decision.code is ExitCode.NOTHING_COMPARABLE:
        return f"{size} {against}. What cannot be compared is neither a pass nor a regression: {first}."
    if decision.code is ExitCode.UNDECIDED:
        share = f"{number(doubt)} of {count(len(comparison.metrics), 'metric')}"
        return f"{share} cannot be decided {against}, and --strict does not let that pass."
    if decision.code is ExitCode.EVIDENCE_BROKEN:
        return f"The evidence cannot be trusted as it stands, so the code is not judged: {first}."
    if decision.code is ExitCode.INTERRUPTED:
        return f"The run was stopped before its end; {size} had been seen by then."
    return "The command could not be understood, so nothing was judged."


def _counts(comparison: Comparison, head: Evidence) -> tuple[Count, ...]:
    """The strip under the verdict: always the same six, so that two reports can be read side by side."""
    cases = Counter(row.outcome for row in comparison.cases)
    metrics = Counter(row.outcome for row in comparison.metrics)
    statuses = Counter(case.status for scope in head.scopes for case in scope.cases)
    total, passed = statuses.total(), statuses[CaseStatus.PASSED]
    idle = sum(row.origin.kind is OriginKind.NOT_RUN for row in comparison.scopes)

    def tally_of(n: int, word: str, of: str, tone: Tone, at: str) -> Count:
        return Count(number(n), word, of, tone, at) if n else Count(number(n), word, of, Tone.QUIET)

    missing = cases[CaseOutcome.MISSING] + metrics[MetricOutcome.MISSING]
    worse = metrics[MetricOutcome.WORSE] + metrics[MetricOutcome.CHANGED]
    open_ = metrics[MetricOutcome.UNDECIDED] + metrics[MetricOutcome.INCOMPARABLE]
    # Of both sides.
    of_cases, of_metrics = f"of {count(cases.total(), 'case')}", f"of {count(metrics.total(), 'metric')}"
    skipped = f", {number(statuses[CaseStatus.SKIPPED])} skipped" if statuses[CaseStatus.SKIPPED] else ""
    of_all, all_passed = f"of {number(total)} in head{skipped}", 0 < total == passed
    return (
        Count(number(passed), "passed", of_all, Tone.GOOD if all_passed else Tone.PLAIN, "coverage"),
        tally_of(cases[CaseOutcome.BROKEN], "broken", of_cases, Tone.BAD, "regressions"),
        tally_of(missing, "missing", "cases and metrics", Tone.BAD, "regressions"),
        tally_of(worse, "worse or changed", of_metrics, Tone.BAD, "regressions"),
        tally_of(open_, "not decided", of_metrics, Tone.DOUBT, "doubts"),
        tally_of(idle, "not run", f"of {count(len(comparison.scopes), 'scope')}", Tone.DOUBT, "limits"),
    )
