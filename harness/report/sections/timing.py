"""Timing: what was judged and how, then the pictures of it, then the tokens that the times were taken on."""

from __future__ import annotations

from harness.model import Evidence, Samples, TokenControl
from harness.report.document import Block, Cell, CellKind, Line, Paragraph, Section, Table, Tone
from harness.report.sections import figures
from harness.report.sections import rows as shared
from harness.report.sections.rows import Footnotes
from harness.report.words import METRIC_TONE, NBSP, count, number, percent, short_hash, visible
from harness.verdict import Comparison, MetricOutcome, MetricRow

# Worst first: a reader who stops after three rows has seen what matters.
_ORDER = (
    MetricOutcome.WORSE,
    MetricOutcome.MISSING,
    MetricOutcome.INCOMPARABLE,
    MetricOutcome.UNDECIDED,
    MetricOutcome.CHANGED,
    MetricOutcome.BETTER,
    MetricOutcome.SAME,
    MetricOutcome.NEW,
)
_HINT = "base → head median, change, [interval] and ± margin in %, n"


def section(comparison: Comparison, head: Evidence, base: Evidence | None, footnotes: Footnotes) -> Section:
    """Every sample set of the comparison, with interval and margin; strips, forest, acceptance; token controls."""
    order = {outcome: place for place, outcome in enumerate(_ORDER)}
    timed = sorted((row for row in comparison.metrics if row.kind == "samples"), key=lambda row: order[row.outcome])
    tokens = [row for row in comparison.metrics if row.kind == "tokens"]
    blocks: list[Block] = []
    if timed:
        of_head, of_base = _samples(head), _samples(base)
        blocks.append(_table(timed, footnotes))
        blocks += figures.forest(timed)
        blocks += figures.round_strips([(row, of_head.get(_key(row)), of_base.get(_key(row))) for row in timed])
        undrawn = len(timed) - figures.STRIP_FIGURES
        if undrawn > 0:
            drawn = "The rounds of the first quantities are drawn, worst first"
            blocks.append(Paragraph(f"{drawn}; {number(undrawn)} more stand in the table alone.", Tone.QUIET))
    blocks += figures.telemetry(head)
    if tokens:
        head_controls, base_controls = _controls(head), _controls(base)
        entries = [(row, head_controls.get(_key(row)), base_controls.get(_key(row))) for row in tokens]
        blocks.append(_controls_table(entries))
        blocks += figures.acceptance(entries)
    return Section("timing", "Timing", _lead(timed, head), tuple(blocks), _brief(timed), _HINT)


def _key(row: MetricRow) -> tuple[str, str, str]:
    return row.scope, row.node, row.name


def _samples(evidence: Evidence | None) -> dict[tuple[str, str, str], Samples]:
    scopes = evidence.scopes if evidence else ()
    return {(scope.scope, samples.node, samples.name): samples for scope in scopes for samples in scope.samples}


def _controls(evidence: Evidence | None) -> dict[tuple[str, str, str], TokenControl]:
    scopes = evidence.scopes if evidence else ()
    return {(scope.scope, control.node, control.name): control for scope in scopes for control in scope.tokens}


def _lead(timed: list[MetricRow], head: Evidence) -> str:
    if not timed:
        return "No times were taken in this run, so nothing about speed is said."
    judged = sum(row.outcome in (MetricOutcome.SAME, MetricOutcome.BETTER, MetricOutcome.WORSE) for row in timed)
    return (
        f"{count(len(timed), 'quantity', 'quantities')} timed under {visible(head.device_key)}, {number(judged)} of "
        "them decided. A figure is the median of n repeats; two are compared as the ratio head / base, and only where "
        "they are about the same tokens. To count as worse or better, the whole interval of that ratio must lie beyond "
        "the margin; to count as the same, within it."
    )


def _table(timed: list[MetricRow], footnotes: Footnotes) -> Table:
    columns = ("Outcome", "Quantity", "Base median", "Head median", "n", "Head / base", "Interval", "Margin")
    return shared.table(
        "samples",
        "Timed quantities: median of n repeats, base against head",
        columns,
        timed,
        lambda row: _cells(row, footnotes),
        row_header=1,
    )


def _cells(row: MetricRow, footnotes: Footnotes) -> tuple[Cell, ...]:
    # The reason of a doubt is the row's point, so it becomes a footnote right at the outcome.
    notes = tuple(sorted(footnotes.refs([row.reason]) + shared.metric_notes(row, footnotes)))
    ratio = Cell(
        "—" if row.ratio is None else percent(row.ratio), CellKind.NUMBER, METRIC_TONE[row.outcome], sort=row.ratio
    )
    return (
        shared.metric_outcome(row, notes),
        shared.node(shared.metric_label(row)),
        shared.measured(row.base, row.unit),
        shared.measured(row.head, row.unit),
        Cell(shared.n_text(row), CellKind.NUMBER),
        ratio,
        Cell(shared.interval_text(row), CellKind.NUMBER),
        Cell("—" if row.margin is None else f"± {shared.margin_text(row.margin)}", CellKind.NUMBER, sort=row.margin),
    )


def _brief(timed: list[MetricRow]) -> tuple[Line, ...]:
    """What is not told under What changed already: times that stayed, got better, or have no base yet."""
    told = (MetricOutcome.WORSE, MetricOutcome.MISSING, MetricOutcome.INCOMPARABLE, MetricOutcome.UNDECIDED)
    rest = tuple(_line(row) for row in timed if row.outcome not in told)
    above = len(timed) - len(rest)
    if not above:
        return rest
    more = "more " if rest else ""
    return (*rest, Line("", f"{number(above)} {more}{'quantity' if above == 1 else 'quantities'} above", Tone.QUIET))


def _line(row: MetricRow) -> Line:
    values = [number(value) for value in (row.base, row.head) if value is not None]
    detail = f"{visible(' → '.join(values) + ' ' + row.unit).rstrip()}"
    if row.ratio is not None:
        detail += f"  {percent(row.ratio)}"
    if row.interval:
        detail += f" [{percent(row.interval.low)}, {percent(row.interval.high)}]".replace(f"{NBSP}%", "")
    if row.margin is not None:
        detail += f" ±{100 * row.margin:.1f}"
    about = f"{visible(row.node.rpartition('::')[2])} {visible(row.name)}"
    return Line(row.outcome.value, about, METRIC_TONE[row.outcome], f"{detail}, n {shared.n_text(row)}")


def _controls_table(controls: list[tuple[MetricRow, TokenControl | None, TokenControl | None]]) -> Table:
    columns = ("Outcome", "Token control", "Tokens", "Emitted / round", "Finish", "Base hash", "Head hash", "Why")
    caption = "Token controls: two times are comparable only where the tokens are the same"
    return shared.table("controls", caption, columns, controls, _control_cells, row_header=1)


def _control_cells(entry: tuple[MetricRow, TokenControl | None, TokenControl | None]) -> tuple[Cell, ...]:
    row, head, base = entry
    shown = head or base
    finish = _finish(shown) if shown else "—"
    base_hash, head_hash = (
        row.base_text or (base.sha256 if base else ""),
        row.head_text or (head.sha256 if head else ""),
    )
    return (
        shared.metric_outcome(row),
        shared.node(shared.metric_label(row)),
        shared.whole(shown.tokens if shown else None),
        shared.measured(shown.emitted_per_round if shown else None, ""),
        shared.text(finish),
        shared.code(short_hash(base_hash) or "absent", Tone.QUIET),
        shared.code(short_hash(head_hash) or "absent"),
        shared.text(row.reason),
    )


def _finish(control: TokenControl) -> str:
    """How the prompts ended: ``stop 4``, ``length 1, stop 3``."""
    counts = {reason: control.finish.count(reason) for reason in sorted(set(control.finish))}
    return ", ".join(f"{reason} {number}" for reason, number in counts.items())
