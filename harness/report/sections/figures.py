"""Choosing what to draw: records in, ``Figure`` blocks out, each with its sentence and the same figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from harness.model import Evidence, Samples, TokenControl, Track
from harness.report.document import (
    Cell,
    CellKind,
    Figure,
    Forest,
    ForestRow,
    Histogram,
    HistogramSide,
    Lane,
    RoundStrips,
    Strip,
    Telemetry,
    TelemetryPanel,
)
from harness.report.sections import rows as shared
from harness.report.words import METRIC_TONE, count, listed, number, quantity, seconds, shortened, visible
from harness.units import convert, same_dimension
from harness.verdict import MetricOutcome, MetricRow

# More than this in one picture cannot be told apart, and a page of hundreds of pictures does not open.
FOREST_ROWS = 30
STRIP_FIGURES = 6
HISTOGRAM_FIGURES = 4
TELEMETRY_FIGURES = 3
TWIN = "The same figures as a table"


def forest(timed: Sequence[MetricRow]) -> list[Figure]:
    """Ratio of each decided or undecided quantity with interval and margin; nothing when no ratio is known."""
    drawn = [row for row in timed if row.ratio is not None and row.ratio > 0][:FOREST_ROWS]
    if not drawn:
        return []
    levels = sorted({row.interval.level for row in drawn if row.interval})
    interval = " and ".join(f"{100 * level:g} %" for level in levels) + " interval" if levels else "no interval"
    data = Forest(tuple(_forest_row(row) for row in drawn), interval)
    worse = [row for row in drawn if row.outcome is MetricOutcome.WORSE]
    alt = (
        f"Ratio head / base of {count(len(drawn), 'timed quantity', 'timed quantities')} with {interval} and margin; "
        f"{number(len(worse))} beyond the margin on the worse side."
    )
    twin = shared.table(
        "forest-figures",
        TWIN,
        ("Quantity", "Outcome", "Head / base", "Interval", "Margin", "n"),
        drawn,
        lambda row: (
            shared.node(shared.metric_label(row)),
            shared.metric_outcome(row),
            Cell(f"{row.ratio:.4f}", CellKind.NUMBER),
            Cell(
                "—" if row.interval is None else f"{row.interval.low:.4f} to {row.interval.high:.4f}", CellKind.NUMBER
            ),
            Cell("—" if row.margin is None else f"± {shared.margin_text(row.margin)}", CellKind.NUMBER),
            Cell(shared.n_text(row), CellKind.NUMBER),
        ),
    )
    return [Figure("ratio-forest", "Head against base, as ratios of medians", alt, data, twin)]


def _forest_row(row: MetricRow) -> ForestRow:
    assert row.ratio is not None
    low, high = (row.interval.low, row.interval.high) if row.interval else (None, None)
    tone = METRIC_TONE[row.outcome]
    return ForestRow(
        label(row.node, row.name), row.ratio, low, high, row.margin, row.outcome.value, tone, shared.n_text(row)
    )


def label(node: str, name: str) -> str:
    """A plot has little room: the case without its path, then the quantity."""
    return shortened(f"{visible(node.rpartition('::')[2])}  {visible(name)}", 56)


def round_strips(sampled: Sequence[tuple[MetricRow, Samples | None, Samples | None]]) -> list[Figure]:
    """One figure per quantity: its rounds per repeat as dots, the repeat's figure as a bar, base beside head."""
    known = [(row, _drawable(head, row), _drawable(base, row)) for row, head, base in sampled]
    known = [entry for entry in known if entry[1] or entry[2]]
    return [_strip_figure(place, *entry) for place, entry in enumerate(known[:STRIP_FIGURES], 1)]


def _strip_figure(place: int, row: MetricRow, head: Samples | None, base: Samples | None) -> Figure:
    sides = (("base", base), ("head", head))
    strips = tuple(_strip(side, samples, row.unit) for side, samples in sides if samples)
    unit = visible(row.unit)
    medians = " and ".join(
        f"{strip.side} {quantity(median(strip.medians), unit)} over {count(len(strip.medians), 'repeat')}"
        for strip in strips
    )
    twin = shared.table(
        f"rounds-{place}-figures",
        TWIN,
        ("Side and repeat", "Figure of the repeat", "Least round", "Median round", "Greatest round", "Rounds, n"),
        [(strip, index) for strip in strips for index in range(len(strip.medians))],
        lambda entry: _repeat_cells(entry, unit),
    )
    alt = f"Median of the repeats: {medians}."
    data = RoundStrips(unit, visible(row.name), strips)
    return Figure(f"rounds-{place}", label(row.node, row.name), alt, data, twin)


def _drawable(samples: Samples | None, row: MetricRow) -> Samples | None:
    """Only what measures the same thing as the row shares an axis with it."""
    return samples if samples and same_dimension(samples.unit, row.unit) else None


def _strip(side: str, samples: Samples, unit: str) -> Strip:
    told = samples.rounds if len(samples.rounds) == len(samples.values) else tuple(() for _ in samples.values)
    rounds = tuple(tuple(convert(value, samples.unit, unit) for value in repeat) for repeat in told)
    return Strip(side, rounds, tuple(convert(value, samples.unit, unit) for value in samples.values))


def _repeat_cells(entry: tuple[Strip, int], unit: str) -> tuple[Cell, ...]:
    strip, index = entry
    rounds = strip.repeats[index]
    spread = (min(rounds), median(rounds), max(rounds)) if rounds else (None, None, None)
    return (
        shared.text(f"{strip.side}, repeat {index + 1}"),
        shared.measured(strip.medians[index], unit),
        *(shared.measured(value, unit) for value in spread),
        shared.whole(len(rounds) or None),
    )


def acceptance(controls: Sequence[tuple[MetricRow, TokenControl | None, TokenControl | None]]) -> list[Figure]:
    """How many rounds emitted 0, 1, 2, … tokens, head beside base. A round that always emits the same is no picture."""
    telling = [
        (row, head, base)
        for row, head, base in controls
        if any(control and sum(n > 0 for n in control.acceptance_histogram) > 1 for control in (head, base))
    ]
    return [_acceptance_figure(place, *entry) for place, entry in enumerate(telling[:HISTOGRAM_FIGURES], 1)]


def _acceptance_figure(place: int, row: MetricRow, head: TokenControl | None, base: TokenControl | None) -> Figure:
    found = [(side, it) for side, it in (("base", base), ("head", head)) if it and it.acceptance_histogram]
    sides = tuple(HistogramSide(side, control.acceptance_histogram) for side, control in found)

    def cells(emitted: int) -> tuple[Cell, ...]:
        rounds = (side.counts[emitted] if emitted < len(side.counts) else 0 for side in sides)
        return (shared.whole(emitted), *(shared.whole(n) for n in rounds))

    twin = shared.table(
        f"acceptance-{place}-figures",
        TWIN,
        ("Tokens emitted by the round", *(f"Rounds, {side.side}" for side in sides)),
        range(max(len(side.counts) for side in sides)),
        cells,
    )
    means = " and ".join(
        f"{side} {number(control.emitted_per_round)} over {count(sum(control.acceptance_histogram), 'round')}"
        for side, control in found
    )
    alt = f"Mean of tokens emitted per round: {means}."
    data = Histogram("tokens emitted by a round", "rounds", sides)
    return Figure(f"acceptance-{place}", label(row.node, row.name), alt, data, twin)


def telemetry(head: Evidence) -> list[Figure]:
    """What the machine did while each timed scope ran, as it was looked at."""
    watched = [scope for scope in head.scopes if scope.samples and scope.tracks]
    return [_telemetry_figure(scope.scope, scope.tracks) for scope in watched[:TELEMETRY_FIGURES]]


def _telemetry_figure(scope: str, found: tuple[Track, ...]) -> Figure:
    panels: dict[tuple[str, str], list[Lane]] = {}
    for track in found:
        panels.setdefault((visible(track.quantity), visible(track.unit)), []).append(
            Lane(visible(track.source), track.points)
        )
    data = Telemetry(tuple(TelemetryPanel(*key, tuple(lanes)) for key, lanes in panels.items()))
    lasted = max(point[0] for track in found for point in track.points)
    shares = [
        f"{visible(track.source)} {fmean(value for _, value in track.points):.2f}"
        for track in found
        if track.unit == "processors"
    ]
    held = [visible(track.source) for track in found if track.unit == "GPUs"]
    alt = f"Over {seconds(lasted)}"
    alt += f", mean processors in use: {', '.join(shares)}" if shares else ""
    alt += f"; clocks were held down by {listed(held)}." if held else "."

    def cells(track: Track) -> tuple[Cell, ...]:
        values = [value for _, value in track.points]
        spread = (min(values), median(values), max(values))
        unit = visible(track.unit)
        return (
            shared.text(f"{track.quantity}, {track.source}"),
            *(shared.measured(round(value, 3), unit) for value in spread),
            shared.whole(len(values)),
        )

    columns = ("Quantity", "Least", "Median", "Greatest", "Looks, n")
    key = f"telemetry-{_slug(scope)}"
    twin = shared.table(f"{key}-figures", TWIN, columns, found, cells)
    return Figure(key, f"The machine while {visible(scope)} ran", alt, data, twin)


def _slug(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in text)
