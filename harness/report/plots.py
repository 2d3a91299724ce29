"""Pictures of a ``Document``'s figures, as SVG bytes. Draws from the figure's own data; reads and judges nothing.

Figures are ``matplotlib.figure.Figure`` objects, never pyplot's, so nothing is kept between calls and no display is
asked for. The same document gives the same bytes: ids are salted with the figure's key and no date is written.
Shapes and words repeat what a colour says. Text stays text, so it can be read aloud, found and restyled.
"""

from __future__ import annotations

import math
import textwrap
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.report.alarms import alarms
from harness.report.document import (
    Alarms,
    Document,
    Figure,
    Forest,
    Histogram,
    Resources,
    RoundStrips,
    Telemetry,
    Trend,
)
from harness.report.palette import INKS, PAPER, TONE_INKS, TONE_MARKS
from harness.report.words import number, percent

INK, FAINT, GRID, BAND = INKS["ink"], INKS["faint"], INKS["grid"], INKS["band"]
SIDE_INKS = {"head": INKS["head"], "base": INKS["base"]}
# Comes with matplotlib, so every machine lays text out alike; a reader without it gets the next one.
_FONT = "DejaVu Sans"
_WIDTH = 7.6
_TREND_LABELS = 7
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": _FONT,
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def draw(document: Document) -> dict[str, bytes]:
    """``<figure key>.svg`` -> SVG for every figure of the document."""
    return {f"{figure.key}.svg": _drawn(figure) for figure in document.figures}


def _drawn(figure: Figure) -> bytes:
    metadata = {"Date": None, "Creator": None, "Title": figure.title, "Description": figure.alt}
    with matplotlib.rc_context(_STYLE), matplotlib.rc_context({"svg.hashsalt": figure.key}):
        out, canvas = BytesIO(), _canvas(figure)
        canvas.patch.set(facecolor=PAPER, alpha=1)
        canvas.savefig(out, format="svg", metadata=metadata)
    return out.getvalue().replace(f"'{_FONT}'".encode(), f"'{_FONT}', system-ui, sans-serif".encode())


def _canvas(figure: Figure) -> Canvas:
    data = figure.data
    if isinstance(data, Forest):
        return _forest(data)
    if isinstance(data, RoundStrips):
        return _round_strips(data)
    if isinstance(data, Histogram):
        return _histogram(data)
    if isinstance(data, Trend):
        return _trend(data)
    if isinstance(data, Telemetry):
        return _telemetry(data)
    if isinstance(data, Alarms):
        return alarms(data, _WIDTH)
    return _resources(data)


def _blank(height: float, panels: int = 1, ratios: list[float] | None = None) -> tuple[Canvas, list[Axes]]:
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    grid = canvas.subplots(1, panels, squeeze=False, sharey=True, width_ratios=ratios)
    axes = [axis for row in grid for axis in row]
    for axis in axes:
        axis.patch.set_alpha(0)
        axis.tick_params(length=3)
    return canvas, axes


# ---- ratio forest ---------------------------------------------------------------------------------------------------


def _forest(data: Forest) -> Canvas:
    """One row per quantity: name above on the left, outcome above on the right, interval on its margin below."""
    rows = data.rows
    canvas, (axis,) = _blank(1.0 + 0.6 * len(rows))
    for place, row in enumerate(rows):
        ink = TONE_INKS[row.tone]
        if row.margin is not None:
            axis.barh(place, 2 * row.margin, left=1 - row.margin, height=0.4, color=BAND, linewidth=0)
        if row.low is not None and row.high is not None:
            axis.plot([row.low, row.high], [place, place], color=ink, linewidth=2.2, solid_capstyle="butt")
        axis.plot(row.ratio, place, TONE_MARKS[row.tone], color=ink, markersize=7)
        across = axis.get_yaxis_transform()
        axis.text(0, place - 0.3, row.label, transform=across, va="bottom")
        axis.text(
            1,
            place - 0.3,
            f"{row.outcome}  {percent(row.ratio)}, n {row.n}",
            transform=across,
            va="bottom",
            ha="right",
            color=ink,
        )
    axis.axvline(1, color=FAINT, linewidth=1)
    axis.set_yticks([])
    axis.set_ylim(len(rows) - 0.6, -0.85)
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda ratio, _: "as base" if abs(ratio - 1) < 1e-9 else percent(ratio))
    )
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.margins(x=0.06)
    axis.spines["left"].set_visible(False)
    axis.set_xlabel(f"median of head / median of base, with {data.interval}; shaded: margin")
    return canvas


# ---- round times ----------------------------------------------------------------------------------------------------


def _round_strips(data: RoundStrips) -> Canvas:
    lanes = sum(len(strip.medians) for strip in data.strips)
    canvas, (axis,) = _blank(1.0 + 0.25 * lanes)
    labels: list[str] = []
    for strip in data.strips:
        color = SIDE_INKS[strip.side]
        for index, (rounds, figure) in enumerate(zip(strip.repeats, strip.medians, strict=True)):
            lane = len(labels)
            axis.plot(
                rounds,
                [lane + _spread(i) for i in range(len(rounds))],
                ".",
                color=color,
                alpha=0.6,
                markersize=5,
                markeredgewidth=0,
            )
            axis.plot([figure, figure], [lane - 0.36, lane + 0.36], color=color, linewidth=2.6, solid_capstyle="butt")
            labels.append(f"{strip.side} {index + 1}  (n {len(rounds)})" if rounds else f"{strip.side} {index + 1}")
    axis.set_yticks(range(lanes), labels)
    axis.set_ylim(lanes - 0.4, -0.6)
    axis.grid(axis="x")
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.ticklabel_format(axis="x", useOffset=False)
    any_rounds = any(rounds for strip in data.strips for rounds in strip.repeats)
    what = "dot: one round; bar: figure of the repeat" if any_rounds else "bar: figure of the repeat"
    axis.set_xlabel(f"{data.quantity}, {data.unit}  ({what})" if data.unit else f"{data.quantity}  ({what})")
    return canvas


def _spread(index: int) -> float:
    """A fixed low-discrepancy offset in ±0.26, so that equal times do not hide each other and bytes stay the same."""
    return 0.52 * ((index * 0.6180339887498949) % 1 - 0.5)


# ---- histograms and bars --------------------------------------------------------------------------------------------


def _histogram(data: Histogram) -> Canvas:
    canvas, (axis,) = _blank(2.9)
    width = 0.78 / len(data.sides)
    for place, side in enumerate(data.sides):
        shift = (place - (len(data.sides) - 1) / 2) * width
        color = SIDE_INKS[side.side]
        label = f"{side.side}, {sum(side.counts):,} {data.counted}"
        bars = axis.bar([i + shift for i in range(len(side.counts))], side.counts, width, color=color, label=label)
        axis.bar_label(
            bars, [f"{count:,}" if count else "" for count in side.counts], fontsize=8, color=INK, padding=1.5
        )
    longest = max(len(side.counts) for side in data.sides)
    axis.set_xticks(range(longest))
    axis.set_xlabel(data.quantity)
    axis.set_ylabel(f"{data.counted}, n")
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.grid(axis="y")
    axis.margins(x=0.02, y=0.14)
    canvas.legend(loc="outside upper right", ncols=2)
    return canvas


def _resources(data: Resources) -> Canvas:
    kernels = list(dict.fromkeys(bar.label for panel in data.panels for bar in panel.bars))
    place = {kernel: index for index, kernel in enumerate(kernels)}
    canvas, axes = _blank(1.1 + 0.29 * len(kernels), len(data.panels))
    for axis, panel in zip(axes, data.panels, strict=True):
        for bar in panel.bars:
            lane = place[bar.label]
            axis.barh(lane, bar.head, height=0.62, color=SIDE_INKS["head"], linewidth=0)
            moved = bar.base is not None and bar.base != bar.head
            if moved and bar.base is not None:
                axis.plot(
                    [bar.base, bar.base],
                    [lane - 0.42, lane + 0.42],
                    color=SIDE_INKS["base"],
                    linewidth=2.6,
                    solid_capstyle="butt",
                )
            axis.annotate(
                _bar_text(bar.head, bar.base),
                (bar.head, lane),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INK,
            )
        axis.set_xlabel(textwrap.fill(panel.quantity, 16), fontsize=9)
        axis.set_xlim(0, 1.45 * max(1.0, *(max(bar.head, bar.base or 0) for bar in panel.bars)))
        axis.xaxis.set_major_locator(MaxNLocator(2, integer=True))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.grid(axis="x")
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(kernels)), kernels)
    axes[0].set_ylim(len(kernels) - 0.4, -0.6)
    return canvas


def _bar_text(head: float, base: float | None) -> str:
    return number(head) if base is None or base == head else f"{number(head)} (was {number(base)})"


# ---- trend ----------------------------------------------------------------------------------------------------------


def _trend(data: Trend) -> Canvas:
    """Bundles from left to right: a dot each with the span of its repeats, a line a level, steps and breaks across."""
    canvas, (axis,) = _blank(3.4)
    ink = SIDE_INKS["head"]
    for at, point in enumerate(data.points):
        color = ink if point.counts else FAINT
        axis.plot([at, at], [point.low, point.high], color=color, linewidth=1.2, alpha=0.6)
        axis.plot(at, point.value, "o", markersize=5, color=color, markerfacecolor=color if point.counts else "none")
    for start, end, level in data.levels:
        axis.plot([start - 0.4, end - 0.6], [level, level], color=INK, linewidth=1.6)
    across = axis.get_xaxis_transform()
    for place in data.breaks:
        axis.axvline(place - 0.5, color=FAINT, linewidth=1, linestyle=":")
        axis.text(place - 0.4, 0.0, "break", transform=across, va="bottom", fontsize=8.5, color=INK)
    for row, step in enumerate(data.steps):
        color = TONE_INKS[step.tone]
        axis.axvline(step.at - 0.5, color=color, linewidth=1.4, linestyle="--")
        late = step.at > 0.6 * len(data.points)
        spot = step.at - (0.6 if late else 0.4)
        axis.text(
            spot,
            1 - 0.08 * (row % 3),
            step.label,
            transform=across,
            va="top",
            ha="right" if late else "left",
            color=color,
        )
    axis.set_xlim(-0.7, len(data.points) - 0.3)
    shown = range(0, len(data.points), max(1, math.ceil(len(data.points) / _TREND_LABELS)))
    axis.set_xticks(list(shown), [data.points[at].label for at in shown], fontsize=8.5)
    axis.margins(y=0.22)
    axis.ticklabel_format(axis="y", useOffset=False)
    axis.grid(axis="y")
    axis.set_ylabel(data.quantity if data.unit in ("", data.quantity) else f"{data.quantity}, {data.unit}")
    axis.set_xlabel("bundle, oldest first (dot: median of its repeats; bar: their span; hollow: not judged)")
    return canvas


# ---- telemetry ------------------------------------------------------------------------------------------------------

_LANE_INKS = (INKS["head"], INKS["base"], INKS["bad"], INKS["doubt"], INKS["good"])
_LANE_STYLES = ("-", "--", ":", "-.")


def _telemetry(data: Telemetry) -> Canvas:
    """One panel per quantity under one time axis; one line per source, named at its end of the panel's title."""
    canvas = Canvas(figsize=(_WIDTH, 0.7 + 1.05 * len(data.panels)), layout="constrained")
    axes = [row[0] for row in canvas.subplots(len(data.panels), 1, squeeze=False, sharex=True)]
    for axis, panel in zip(axes, data.panels, strict=True):
        axis.patch.set_alpha(0)
        axis.tick_params(length=3)
        for place, lane in enumerate(panel.lanes):
            times, values = zip(*lane.points, strict=True)
            ink = _LANE_INKS[place % len(_LANE_INKS)]
            style = _LANE_STYLES[place % len(_LANE_STYLES)]
            axis.plot(times, values, style, color=ink, linewidth=1.4, label=lane.source)
        named = panel.unit in panel.quantity.split()
        axis.set_title(panel.quantity if named else f"{panel.quantity}, {panel.unit}", fontsize=10, loc="left")
        axis.grid(axis="y")
        axis.margins(x=0.01, y=0.15)
        axis.yaxis.set_major_locator(MaxNLocator(3))
        axis.ticklabel_format(useOffset=False)
        axis.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=5, borderaxespad=0, handlelength=1.8)
    axes[-1].set_xlabel("seconds since the scope began to be watched, s")
    return canvas
