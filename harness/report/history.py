"""The wording of a history: ``History`` -> the same ``Document`` that a comparison becomes."""

from __future__ import annotations

from harness.report.document import (
    Block,
    Bullets,
    Cell,
    CellKind,
    Count,
    Document,
    Fact,
    Figure,
    Line,
    Paragraph,
    Section,
    Table,
    Tone,
    Trend,
    TrendPoint,
    TrendStep,
    Verdict,
)
from harness.report.sections import figures
from harness.report.sections import rows as shared
from harness.report.words import METRIC_TONE, count, device_limits, listed, number, percent, quantity, visible
from harness.trends.history import History, Series, Step, Streak
from harness.trends.nights import NIGHTS_TO_CONFIRM
from harness.verdict import MetricOutcome

TREND_FIGURES = 12
_REST = "the JSON or CSV form lists every point"

Moved = tuple[Series, Step]


def build_history_document(history: History) -> Document:
    """Everything a history says: what stepped, what is out of line now, every series, the bundles, the limits."""
    steps = [(series, step) for series in history.series for step in series.steps]
    steps.sort(key=lambda moved: (moved[1].outcome is not MetricOutcome.WORSE, -moved[0].points[moved[1].at].bundle))
    streaks = [(series, series.streak) for series in history.series if series.streak]
    sections = (
        _changed(history, steps),
        _latest(streaks),
        _series_section(history),
        _bundles(history),
        _limits(history),
    )
    span = f"{_day(history, 0)} to {_day(history, -1)}" if history.bundles else "no bundle"
    return Document(
        kind="History",
        title=f"{count(len(history.bundles), 'bundle')}, {span}",
        stamp=(span,),
        verdict=_verdict(history, steps, streaks),
        subject=(
            Fact("Bundles", number(len(history.bundles))),
            Fact("Span", span),
            Fact("Device keys", listed(sorted({visible(bundle.device_key) for bundle in history.bundles})) or "none"),
            Fact("Series", number(len(history.series))),
            Fact("Margin", f"± {shared.margin_text(history.margin)}"),
        ),
        sections=sections,
        footnotes=(),
        foot="Every bundle named here can be checked by itself: harness verify BUNDLE.",
    )


def _verdict(history: History, steps: list[Moved], streaks: list[tuple[Series, Streak]]) -> Verdict:
    worse = sum(series.since_break is MetricOutcome.WORSE for series in history.series)
    bad = [streak for _, streak in streaks if streak.outcome is MetricOutcome.WORSE]
    confirmed = sum(streak.nights >= NIGHTS_TO_CONFIRM for streak in bad)
    if len(history.bundles) < 2:
        word, tone = "Too short to tell", Tone.DOUBT
    elif worse or confirmed:
        word, tone = "Worse over time", Tone.BAD
    elif steps or streaks:
        word, tone = "Moved over time", Tone.PLAIN
    else:
        word, tone = "Steady", Tone.GOOD
    size = f"{count(len(history.series), 'series', 'series')} over {count(len(history.bundles), 'bundle')}"
    sentence = (
        f"Of {size}, {number(worse)} now stand worse than they began, and {number(confirmed)} have been out of line to "
        f"the worse for the last {NIGHTS_TO_CONFIRM} bundles or more. {count(len(steps), 'step')} in all."
    )
    return Verdict(word, sentence, tone, count(len(history.bundles), "bundle"), (), _counts(history, worse, confirmed))


def _counts(history: History, worse: int, confirmed: int) -> tuple[Count, ...]:
    def tally(n: int, word: str, of: str, tone: Tone) -> Count:
        return Count(number(n), word, of, tone if n else Tone.QUIET)

    of_series = f"of {count(len(history.series), 'series', 'series')}"
    out_of_line = sum(series.streak is not None for series in history.series)
    return (
        tally(worse, "worse", of_series, Tone.BAD),
        tally(sum(s.since_break is MetricOutcome.BETTER for s in history.series), "better", of_series, Tone.GOOD),
        tally(out_of_line, "out of line", "in the latest bundle", Tone.DOUBT),
        tally(confirmed, "confirmed worse", f"{NIGHTS_TO_CONFIRM} bundles or more", Tone.BAD),
        tally(sum(bool(s.breaks) for s in history.series), "broken series", "not comparable across", Tone.DOUBT),
        tally(len(history.not_read), "not read", "bundles", Tone.DOUBT),
    )


# ---- sections -------------------------------------------------------------------------------------------------------


def _changed(history: History, steps: list[Moved]) -> Section:
    columns = ("Outcome", "Series", "From bundle", "Before", "After", "Change", "p", "What else changed there")
    blocks: list[Block] = []
    if steps:
        blocks.append(
            shared.table(
                "steps",
                "Steps, to the worse first, latest first",
                columns,
                steps,
                lambda moved: _step_cells(history, *moved),
                row_header=1,
                rest=_REST,
            )
        )
        blocks += _figures(history)
    else:
        blocks.append(Paragraph("No series has a step.", Tone.GOOD))
    lead = (
        "A step of a noisy quantity is a change of level that holds for at least three bundles, lies beyond the "
        "margin, and passes a rank test corrected for the places searched (p at most 0.05). An exact number steps "
        "wherever it differs."
    )
    return Section(
        "changed", "What stepped", lead, tuple(blocks), tuple(_step_line(history, *moved) for moved in steps)
    )


def _step_cells(history: History, series: Series, step: Step) -> tuple[Cell, ...]:
    return (
        Cell(step.outcome.value, CellKind.OUTCOME, METRIC_TONE[step.outcome]),
        shared.node(_name(series)),
        shared.code(_bundle(history, series, step.at)),
        Cell(_level(step.before, series.unit, step.n_before), CellKind.NUMBER, sort=step.before),
        Cell(_level(step.after, series.unit, step.n_after), CellKind.NUMBER, sort=step.after),
        Cell(_change(step), CellKind.NUMBER, METRIC_TONE[step.outcome], sort=step.ratio),
        Cell("exact" if step.p is None else f"{step.p:.2g}", CellKind.NUMBER, sort=step.p),
        shared.text("; ".join(step.also)),
    )


def _level(value: float, unit: str, n: int) -> str:
    return visible(f"{quantity(value, unit)}, n {n}")


def _change(step: Step) -> str:
    if step.before == step.after:
        return "other tokens"
    return "—" if step.ratio is None else percent(step.ratio)


def _step_line(history: History, series: Series, step: Step) -> Line:
    detail = (
        f"{_level(step.before, series.unit, step.n_before)} → {_level(step.after, series.unit, step.n_after)}  "
        f"{_change(step)} from {_bundle(history, series, step.at)}"
    )
    return Line(step.outcome.value, _name(series), METRIC_TONE[step.outcome], detail)


def _latest(streaks: list[tuple[Series, Streak]]) -> Section:
    def cells(entry: tuple[Series, Streak]) -> tuple[Cell, ...]:
        series, streak = entry
        return (
            Cell(streak.outcome.value, CellKind.OUTCOME, METRIC_TONE[streak.outcome]),
            shared.node(_name(series)),
            shared.whole(streak.nights),
            Cell(_level(streak.reference, series.unit, streak.reference_n), CellKind.NUMBER, sort=streak.reference),
            Cell(percent(streak.ratio), CellKind.NUMBER, METRIC_TONE[streak.outcome], sort=streak.ratio),
            Cell(f"± {shared.margin_text(streak.margin)}", CellKind.NUMBER, sort=streak.margin),
        )

    columns = ("Outcome", "Series", "Bundles in a row, n", "Level before", "Latest against it", "Margin of one bundle")
    caption = "Out of line in the latest bundle, and for how many in a row"
    table = shared.table("latest-rows", caption, columns, streaks, cells, row_header=1, rest=_REST)
    blocks: tuple[Block, ...] = (table,) if streaks else (Paragraph("Every series lies where it lay.", Tone.GOOD),)
    lead = (
        f"One bundle out of line may be a bad night; {NIGHTS_TO_CONFIRM} in a row are worth an alarm. The margin of "
        "one bundle is widened where the series itself is noisier than that."
    )
    brief = tuple(
        Line(
            streak.outcome.value,
            _name(series),
            METRIC_TONE[streak.outcome],
            f"{percent(streak.ratio)} against {_level(streak.reference, series.unit, streak.reference_n)}, "
            f"{count(streak.nights, 'bundle')} in a row",
        )
        for series, streak in streaks
    )
    return Section("latest", "Latest", lead, blocks, brief)


def _series_section(history: History) -> Section:
    def cells(series: Series) -> tuple[Cell, ...]:
        values = [point.value for point in series.points if not point.left_out]
        aside = len(series.points) - len(values)
        return (
            shared.node(_name(series)),
            shared.text(series.device_key),
            shared.whole(len(series.points)),
            shared.whole(aside),
            shared.measured(values[0] if values else None, series.unit),
            shared.measured(values[-1] if values else None, series.unit),
            shared.measured(min(values, default=None), series.unit),
            shared.measured(max(values, default=None), series.unit),
            shared.whole(len(series.steps)),
            shared.text("; ".join(broken.reason for broken in series.breaks)),
        )

    columns = (
        "Series",
        "Device key",
        "Bundles, n",
        "Of them not judged, n",
        "First",
        "Latest",
        "Least",
        "Greatest",
        "Steps, n",
        "Breaks",
    )
    table = shared.table("series-rows", "Every series, what moved first", columns, history.series, cells, rest=_REST)
    lead = (
        "A series is one metric of one case under one device key. It breaks where two neighbouring bundles may not be "
        "compared; nothing is said across a break."
    )
    return Section("series", "Every series", lead, (table,))


def _bundles(history: History) -> Section:
    columns = ("Bundle", "Measured", "Device key", "Commit", "Manifest SHA-256", "Cases, n", "Passed, n")
    table = shared.table(
        "bundle-rows",
        "Bundles, oldest first",
        columns,
        history.bundles,
        lambda bundle: (
            shared.text(bundle.label),
            shared.text(bundle.created or "not recorded"),
            shared.code(bundle.device_key),
            shared.code(bundle.commit[:12] or "unknown"),
            shared.code(bundle.digest[:12] or "not sealed"),
            shared.whole(bundle.cases),
            shared.whole(bundle.passed, Tone.GOOD if 0 < bundle.passed == bundle.cases else Tone.PLAIN),
        ),
        rest=_REST,
    )
    return Section("bundles", "Bundles", "What the series are made of; a bundle found twice counts once.", (table,))


def _limits(history: History) -> Section:
    keys = dict.fromkeys(bundle.device_key for bundle in history.bundles)
    claims = [f"{visible(key)}: {claim}" for key in keys for claim in device_limits(key)]
    claims.append(
        "A trend says when a level changed, not why: bundles differ in commit, time and weather of the machine; an "
        "interleaved A/B run of the two commits settles it."
    )
    blocks: list[Block] = []
    if history.not_read:
        blocks.append(Bullets(tuple(map(visible, history.not_read)), "Not read, and in no figure here", Tone.DOUBT))
    blocks.append(Bullets(tuple(claims), "Not claimed"))
    brief = [Line("not read", visible(reason), Tone.DOUBT) for reason in history.not_read]
    brief += [Line("not claimed", claim, Tone.QUIET) for claim in claims]
    return Section(
        "limits", "Not read, not claimed", "What must not be taken from this page.", tuple(blocks), tuple(brief)
    )


# ---- trends ---------------------------------------------------------------------------------------------------------


def _figures(history: History) -> list[Figure]:
    """The series that moved, worst first as they stand in the history; a picture needs a line, so three points."""
    moved = [series for series in history.series if (series.steps or series.streak) and len(series.points) > 2]
    return [_figure(history, place, series) for place, series in enumerate(moved[:TREND_FIGURES], 1)]


def _figure(history: History, place: int, series: Series) -> Figure:
    unit = visible(series.unit)
    data = Trend(
        visible(series.name),
        unit,
        tuple(
            TrendPoint(_tick(history, point.bundle), point.value, point.low, point.high, not point.left_out)
            for point in series.points
        ),
        series.levels(),
        tuple(
            TrendStep(step.at, f"{step.outcome.value} {_change(step)}", METRIC_TONE[step.outcome])
            for step in series.steps
        ),
        tuple(broken.at for broken in series.breaks),
    )
    levels = ", then ".join(quantity(level, unit) for _, _, level in data.levels)
    alt = f"{count(len(series.points), 'bundle')} under {visible(series.device_key)}; level {levels}."
    twin = _twin(history, place, series)
    return Figure(f"trend-{place}", figures.label(series.node, series.name), alt, data, twin)


def _twin(history: History, place: int, series: Series) -> Table:
    def cells(at: int) -> tuple[Cell, ...]:
        point = series.points[at]
        return (
            shared.code(_bundle(history, series, at)),
            shared.measured(point.value, series.unit),
            shared.measured(point.low, series.unit),
            shared.measured(point.high, series.unit),
            shared.whole(point.n),
            shared.text(point.left_out),
        )

    columns = ("Bundle", "Median", "Least", "Greatest", "Repeats, n", "Not judged because")
    return shared.table(f"trend-{place}-figures", figures.TWIN, columns, range(len(series.points)), cells, rest=_REST)


def _name(series: Series) -> str:
    return visible(f"{series.node} {series.name}")


def _bundle(history: History, series: Series, at: int) -> str:
    bundle = history.bundles[series.points[at].bundle]
    return visible(f"{bundle.created[:10] or bundle.label} {bundle.commit[:9]}".rstrip())


def _tick(history: History, place: int) -> str:
    bundle = history.bundles[place]
    return visible(f"{bundle.created[5:10] or place + 1}\n{bundle.commit[:7]}").replace(" ⏎ ", "\n")


def _day(history: History, place: int) -> str:
    return visible(history.bundles[place].created[:10]) or "unknown day"
