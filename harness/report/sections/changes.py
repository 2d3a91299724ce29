"""What changed: regressions first, then what is in doubt, then what is better or new."""

from __future__ import annotations

from harness.model import CaseOutcome, CaseRow, Comparison, MetricOutcome, MetricRow
from harness.report.document import Block, Cell, Line, Paragraph, Section, Table, Tone
from harness.report.sections import rows as shared
from harness.report.sections.rows import Footnotes
from harness.report.words import CASE_TONE, METRIC_TONE, count, listed, visible

Row = CaseRow | MetricRow

REGRESSED = (
    CaseOutcome.BROKEN,
    CaseOutcome.MISSING,
    MetricOutcome.WORSE,
    MetricOutcome.CHANGED,
    MetricOutcome.MISSING,
)
IN_DOUBT = (
    CaseOutcome.FLAKY,
    CaseOutcome.QUARANTINED,
    CaseOutcome.SKIPPED,
    MetricOutcome.INCOMPARABLE,
    MetricOutcome.UNDECIDED,
)
IMPROVED = (CaseOutcome.FIXED, MetricOutcome.BETTER, CaseOutcome.NEW, MetricOutcome.NEW)


def section(comparison: Comparison, footnotes: Footnotes) -> Section:
    """Every row whose outcome is not UNCHANGED or SAME, and every difference that forbids comparing."""
    regressed = _rows(comparison, REGRESSED)
    new_or_better = _rows(comparison, IMPROVED)
    doubtful = [row for row in new_or_better if _new_and_not_green(row)]
    doubtful += [row for row in _rows(comparison, IN_DOUBT) if not _skip_as_before(row)]
    improved = [row for row in new_or_better if not _new_and_not_green(row)]
    blocks: list[Block] = []
    fatal = [difference for difference in comparison.differences if difference.fatal]
    if fatal:
        blocks.append(
            shared.table(
                "obstacles",
                "What stands in the way of comparing",
                ("Fact", "Base", "Head", "Why it matters"),
                fatal,
                lambda row: (
                    shared.code(row.key),
                    shared.text(row.base),
                    shared.text(row.head),
                    shared.text(row.reason),
                ),
            )
        )
    for key, caption, found in (
        ("regressions", "Regressions", regressed),
        ("doubts", "In doubt: neither a regression nor a pass", doubtful),
        ("improvements", "Fixed, better and new", improved),
    ):
        if found:
            blocks.append(_table(key, caption, found, footnotes, folded=_only_new(found)))
    if not blocks:
        blocks.append(Paragraph("Every case and every metric came out as it did in the base.", Tone.GOOD))
    brief = [
        Line(
            "NOT ALIKE", f"{visible(row.key)}: {visible(row.base)} → {visible(row.head)}", Tone.BAD, visible(row.reason)
        )
        for row in fatal
    ]
    return Section(
        "changed",
        "What changed",
        _lead(regressed, doubtful, improved),
        tuple(blocks),
        (*brief, *_brief(regressed, doubtful, improved)),
    )


def _rows(comparison: Comparison, outcomes: tuple[CaseOutcome | MetricOutcome, ...]) -> list[Row]:
    """Rows with one of ``outcomes``, in the order of ``outcomes`` and then as compared. Cases before metrics."""
    cases: dict[CaseOutcome, list[Row]] = {}
    for case in comparison.cases:
        cases.setdefault(case.outcome, []).append(case)
    metrics: dict[MetricOutcome, list[Row]] = {}
    for metric in comparison.metrics:
        metrics.setdefault(metric.outcome, []).append(metric)
    found: list[Row] = []
    for outcome in outcomes:
        found += cases.get(outcome, []) if isinstance(outcome, CaseOutcome) else metrics.get(outcome, [])
    return found


def _skip_as_before(row: Row) -> bool:
    """A skip that the base does not contradict is coverage, not a change."""
    return isinstance(row, CaseRow) and row.outcome is CaseOutcome.SKIPPED and not (row.base and row.base.green)


def _new_and_not_green(row: Row) -> bool:
    """A case that is new and fails is no improvement."""
    return isinstance(row, CaseRow) and row.outcome is CaseOutcome.NEW and row.head is not None and not row.head.green


def _only_new(found: list[Row]) -> bool:
    return all(row.outcome in (CaseOutcome.NEW, MetricOutcome.NEW) for row in found)


def _table(key: str, caption: str, found: list[Row], footnotes: Footnotes, *, folded: bool) -> Table:
    columns = ("Outcome", "Case or metric", "Base", "Head", "Why")
    return shared.table(key, caption, columns, found, lambda row: _cells(row, footnotes), row_header=1, folded=folded)


def _cells(row: Row, footnotes: Footnotes) -> tuple[Cell, ...]:
    if isinstance(row, CaseRow):
        base, head = shared.case_sides(row)
        return (
            shared.case_outcome(row),
            shared.node(row.node),
            shared.text(base),
            shared.text(head),
            shared.text(row.reason),
        )
    return (
        shared.metric_outcome(row, shared.metric_notes(row, footnotes)),
        shared.node(shared.metric_label(row)),
        shared.text(shared.side_text(row, "base")),
        shared.text(shared.side_text(row, "head")),
        shared.text(shared.metric_why(row)),
    )


def tally(found: list[Row]) -> str:
    """``2 cases broken, 1 case missing and 1 metric worse``."""
    kinds: dict[tuple[str, str], int] = {}
    for row in found:
        kind = ("case" if isinstance(row, CaseRow) else "metric", row.outcome.value.lower())
        kinds[kind] = kinds.get(kind, 0) + 1
    return listed(f"{count(number, thing)} {word}" for (thing, word), number in kinds.items())


def _lead(regressed: list[Row], doubtful: list[Row], improved: list[Row]) -> str:
    if not (regressed or doubtful or improved):
        return "Nothing."
    worse = f"Regressed: {tally(regressed)}." if regressed else "Nothing regressed."
    doubt = f" In doubt: {tally(doubtful)}." if doubtful else ""
    good = f" Otherwise: {tally(improved)}." if improved else ""
    return worse + doubt + good


def _brief(regressed: list[Row], doubtful: list[Row], improved: list[Row]) -> list[Line]:
    """Each regression and doubt as a line; what is new is counted, since no line about it asks for anything."""
    lines = [_line(row) for row in (regressed + doubtful)[: shared.LISTED]]
    if improved:
        lines.append(Line("", f"{tally(improved)}", Tone.QUIET))
    return lines


def _line(row: Row) -> Line:
    if isinstance(row, CaseRow):
        base, head = shared.case_sides(row)
        why = f": {visible(row.reason)}" if row.reason else ""
        return Line(row.outcome.value, visible(row.node), CASE_TONE[row.outcome], f"{base} → {head}{why}")
    sides = f"{shared.side_text(row, 'base')} → {shared.side_text(row, 'head')}"
    why = shared.metric_why(row)
    detail = f"{sides}  {why}".rstrip()
    return Line(row.outcome.value, visible(shared.metric_label(row)), METRIC_TONE[row.outcome], detail)
