"""What several sections share: cells for outcomes, cases and metrics, footnotes, and the cap on long tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from harness.report.document import Cell, CellKind, Table, Tone
from harness.report.words import (
    CASE_TONE,
    METRIC_TONE,
    NBSP,
    number,
    percent,
    quantity,
    repeats,
    short_hash,
    status_word,
    visible,
)
from harness.verdict import NOT_COMPARABLE, CaseRow, MetricOutcome, MetricRow

Row = TypeVar("Row")

# No table lists more rows than this: beyond it nobody reads on, and a page of 100,000 rows does not open.
LISTED = 500
WHOLE_COMPARISON = "comparison.json in the bundle lists every row"


class Footnotes:
    """Doubts that travel with numbers, each text numbered once, in order of first mention."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def refs(self, texts: Iterable[str]) -> tuple[int, ...]:
        """The numbers of ``texts``, rising; a text not met before gets the next number."""
        return tuple(sorted(self._numbers.setdefault(visible(text), len(self._numbers) + 1) for text in texts if text))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def table(
    key: str,
    caption: str,
    columns: tuple[str, ...],
    rows: Sequence[Row],
    cells: Callable[[Row], tuple[Cell, ...]],
    *,
    row_header: int = 0,
    rest: str = WHOLE_COMPARISON,
    folded: bool = False,
    limit: int = LISTED,
) -> Table:
    """A table of ``rows`` in their order, the first ``limit`` of them listed."""
    return Table(
        key,
        caption,
        columns,
        tuple(cells(row) for row in rows[:limit]),
        total=len(rows),
        row_header=row_header,
        rest=rest if len(rows) > limit else "",
        folded=folded,
    )


def text(value: str, tone: Tone = Tone.PLAIN, notes: tuple[int, ...] = ()) -> Cell:
    return Cell(visible(value), tone=tone, notes=notes)


def code(value: str, tone: Tone = Tone.PLAIN) -> Cell:
    return Cell(visible(value), CellKind.CODE, tone)


def node(value: str) -> Cell:
    return Cell(visible(value), CellKind.NODE)


def whole(value: int | None, tone: Tone = Tone.PLAIN) -> Cell:
    """A count of things; ``None`` where it is not known."""
    return Cell(
        "—" if value is None else number(value), CellKind.NUMBER, tone, sort=-1.0 if value is None else float(value)
    )


def measured(value: float | None, unit: str, notes: tuple[int, ...] = ()) -> Cell:
    """A value with its unit."""
    return Cell(visible(quantity(value, unit)), CellKind.NUMBER, notes=notes, sort=value)


def case_outcome(row: CaseRow) -> Cell:
    return Cell(row.outcome.value, CellKind.OUTCOME, CASE_TONE[row.outcome])


def metric_outcome(row: MetricRow, notes: tuple[int, ...] = ()) -> Cell:
    return Cell(row.outcome.value, CellKind.OUTCOME, METRIC_TONE[row.outcome], notes)


def metric_label(row: MetricRow) -> str:
    """Case and metric in one string, as the plots and the one-screen form name it."""
    return f"{row.node} {row.name}"


def side_text(row: MetricRow, side: str) -> str:
    """What base or head had: a value with unit and n, or a short token hash."""
    value, value_n, written = (
        (row.base, row.base_n, row.base_text) if side == "base" else (row.head, row.head_n, row.head_text)
    )
    if row.kind == "tokens" and row.base_text != row.head_text:
        return short_hash(written) or ("stated" if _was_stated(row, side) else "absent")
    if value is None:
        return "stated" if _was_stated(row, side) else "absent"
    n = f" (n{NBSP}{value_n})" if row.kind == "samples" else ""
    return visible(f"{quantity(value, row.unit)}{n}")


def _was_stated(row: MetricRow, side: str) -> bool:
    """A number that went missing stood in the base, whatever it was."""
    return side == "base" and row.outcome is MetricOutcome.MISSING


def case_sides(row: CaseRow) -> tuple[str, str]:
    base = "not compared" if row.reason.startswith(NOT_COMPARABLE) else status_word(row.base)
    return base, status_word(row.head)


def change_text(row: MetricRow) -> str:
    """How far head moved: ``+8.3 %, interval +5.1 % to +11.4 %, margin 3.0 %``; empty where there is no ratio."""
    if row.ratio is None or (row.kind != "samples" and row.outcome is MetricOutcome.SAME):
        return ""
    parts = [percent(row.ratio)]
    if row.interval:
        parts.append(f"interval {interval_text(row)}")
    if row.margin is not None:
        parts.append(f"margin {margin_text(row.margin)}")
    return ", ".join(parts)


def interval_text(row: MetricRow) -> str:
    if row.interval is None:
        return "—"
    return f"{percent(row.interval.low)} to {percent(row.interval.high)}"


def margin_text(margin: float) -> str:
    """A margin is a fraction of the base: ``0.03`` reads ``3.0 %``."""
    return f"{100 * margin:.1f}{NBSP}%"


def metric_why(row: MetricRow) -> str:
    """The change in figures, then the reason in words."""
    return visible("; ".join(part for part in (change_text(row), row.reason) if part))


def metric_notes(row: MetricRow, footnotes: Footnotes) -> tuple[int, ...]:
    """Footnotes of a judged row: how its interval was got, where its margin comes from, and every doubt it carries."""
    texts: list[str] = []
    if row.interval:
        texts.append(f"Interval of head / base at level {100 * row.interval.level:g} %: {row.interval.method}.")
    if row.margin is not None and row.margin_source:
        texts.append(f"Margin {margin_text(row.margin)}: {row.margin_source}.")
    return footnotes.refs([*texts, *row.notes])


def n_text(row: MetricRow) -> str:
    return repeats(row.base_n, row.head_n)
