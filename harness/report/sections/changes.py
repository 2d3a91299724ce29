"""What changed: regressions first, then what is in doubt, then what is better or new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.gate import regressed
from harness.report.document import Block, Bullets, Cell, Line, Paragraph, Section, Table, Tone
from harness.report.sections import rows as shared
from harness.report.sections.rows import Footnotes
from harness.report.words import CASE_TONE, METRIC_TONE, count, listed, visible
from harness.verdict import CaseOutcome, CaseRow, Comparison, Difference, MetricOutcome, MetricRow

Row = CaseRow | MetricRow

# The order in which outcomes are told, gravest first; words, since a case and a metric share some of them.
_ORDER = (
    "BROKEN",
    "WORSE",
    "CHANGED",
    "MISSING",
    "SKIPPED",
    "FLAKY",
    "INCOMPARABLE",
    "UNDECIDED",
    "QUARANTINED",
    "FIXED",
    "BETTER",
    "NEW",
)
COLUMNS = ("Outcome", "Case or metric", "Base", "Head", "Why")
_MANY_ALIKE = 4
_DOUBTFUL = (CaseOutcome.FLAKY, CaseOutcome.QUARANTINED, MetricOutcome.INCOMPARABLE, MetricOutcome.UNDECIDED)
_IMPROVED = (CaseOutcome.FIXED, MetricOutcome.BETTER, CaseOutcome.NEW, MetricOutcome.NEW)


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that did not come out as in the base, each group gravest first."""

    regressed: tuple[Row, ...]
    doubtful: tuple[Row, ...]
    improved: tuple[Row, ...]


def sorted_out(comparison: Comparison) -> Changes:
    """Group the changed rows as the gate weighs them."""
    rows: list[Row] = [row for row in comparison.cases if row.outcome is not CaseOutcome.UNCHANGED]
    rows += [row for row in comparison.metrics if row.outcome is not MetricOutcome.SAME]
    rows.sort(key=lambda row: (isinstance(row, MetricRow), _ORDER.index(row.outcome)))
    return Changes(
        tuple(row for row in rows if regressed(row)),
        tuple(row for row in rows if row.outcome in _DOUBTFUL and not regressed(row)),
        tuple(row for row in rows if row.outcome in _IMPROVED),
    )


def section(comparison: Comparison, changes: Changes, footnotes: Footnotes) -> Section:
    """Scopes that went wrong as a whole, what forbids comparing, then every row that changed, then the alarms."""
    problems = tuple(f"scope {visible(row.scope)}: {visible(row.problem)}" for row in comparison.scopes if row.problem)
    fatal = [difference for difference in comparison.differences if difference.fatal]
    blocks: list[Block] = []
    if problems:
        blocks.append(Bullets(problems, "Scopes that are no clean run", Tone.BAD))
    if fatal:
        blocks.append(differences_table("obstacles", "What stands in the way of comparing times", fatal))
    for key, caption, found in (
        ("regressions", "Regressions", changes.regressed),
        ("doubts", "In doubt: neither a regression nor a pass", changes.doubtful),
        ("improvements", "Fixed, better and new", changes.improved),
    ):
        if found:
            blocks.append(_table(key, caption, found, footnotes, folded=_only_new(found)))
    if comparison.alarms:
        blocks.append(Bullets(tuple(map(visible, comparison.alarms)), "Somebody has to look at", Tone.DOUBT))
    if not blocks:
        blocks.append(Paragraph("Every case and every metric came out as it did in the base.", Tone.GOOD))
    brief = [Line("SCOPE", problem.removeprefix("scope "), Tone.BAD) for problem in problems]
    brief += [Line("NOT ALIKE", _difference_text(row), Tone.DOUBT, visible(row.reason)) for row in fatal]
    brief += [line(row) for row in changes.regressed[: shared.LISTED]]
    brief += _doubt_lines(changes.doubtful)
    brief += [Line("LOOK AT", visible(alarm), Tone.DOUBT) for alarm in comparison.alarms]
    if changes.improved:
        brief.append(Line("", tally(changes.improved), Tone.QUIET))
    return Section("changed", "What changed", _lead(changes), tuple(blocks), tuple(brief))


def differences_table(key: str, caption: str, found: list[Difference]) -> Table:
    """Facts in which the two sides differ."""

    def cells(row: Difference) -> tuple[Cell, ...]:
        return (
            shared.code(row.key),
            shared.text(row.scope or "all"),
            shared.text(row.base),
            shared.text(row.head),
            shared.text(row.reason),
        )

    return shared.table(key, caption, ("Fact", "Scope", "Base", "Head", "Because"), found, cells)


def _difference_text(row: Difference) -> str:
    scope = f" (scope {visible(row.scope)})" if row.scope else ""
    return f"{visible(row.key)}: {visible(row.base)} → {visible(row.head)}{scope}"


def _only_new(found: tuple[Row, ...]) -> bool:
    return all(row.outcome in (CaseOutcome.NEW, MetricOutcome.NEW) for row in found)


def _table(key: str, caption: str, found: tuple[Row, ...], footnotes: Footnotes, *, folded: bool) -> Table:
    return shared.table(key, caption, COLUMNS, found, lambda row: cells(row, footnotes), row_header=1, folded=folded)


def cells(row: Row, footnotes: Footnotes) -> tuple[Cell, ...]:
    """A changed row under ``COLUMNS``."""
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


def tally(found: Iterable[Row]) -> str:
    """``2 cases broken, 1 case missing and 1 metric worse``."""
    kinds: dict[tuple[str, str], int] = {}
    for row in found:
        # A row that is told here and skipped passed at base, or it would not be told.
        word = "newly skipped" if row.outcome is CaseOutcome.SKIPPED else row.outcome.value.lower()
        kind = ("case" if isinstance(row, CaseRow) else "metric", word)
        kinds[kind] = kinds.get(kind, 0) + 1
    return listed(f"{count(number, thing)} {word}" for (thing, word), number in kinds.items())


def _lead(changes: Changes) -> str:
    """What the sentence of the verdict does not say already: it tells the regressions."""
    parts = [] if changes.regressed else ["Nothing regressed."]
    parts += [f"In doubt: {tally(changes.doubtful)}."] if changes.doubtful else []
    parts += [f"{'Otherwise' if parts else 'Also'}: {tally(changes.improved)}."] if changes.improved else []
    return " ".join(parts)


def _doubt_lines(doubtful: tuple[Row, ...]) -> list[Line]:
    """One line per row, but one line for many rows that share outcome and reason."""
    alike: dict[tuple[type[Row], str, str], list[Row]] = {}
    for row in doubtful:
        alike.setdefault((type(row), row.outcome, row.reason), []).append(row)
    lines: list[Line] = []
    for (_, _, reason), rows in alike.items():
        if len(rows) < _MANY_ALIKE:
            lines += map(line, rows)
        else:
            things = count(len(rows), "case" if isinstance(rows[0], CaseRow) else "metric")
            lines.append(Line(rows[0].outcome.value, f"{things}: {visible(reason)}", Tone.DOUBT))
    return lines


def line(row: Row) -> Line:
    """A changed row on the one-screen form."""
    if isinstance(row, CaseRow):
        base, head = shared.case_sides(row)
        why = f": {visible(row.reason)}" if row.reason else ""
        return Line(row.outcome.value, visible(row.node), CASE_TONE[row.outcome], f"{base} → {head}{why}")
    sides = f"{shared.side_text(row, 'base')} → {shared.side_text(row, 'head')}"
    why = shared.metric_why(row)
    detail = f"{sides}  {why}".rstrip()
    return Line(row.outcome.value, visible(shared.metric_label(row)), METRIC_TONE[row.outcome], detail)
