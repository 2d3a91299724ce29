"""The study as a picture: rate of alarms against what was planted, a line a rule, and what each trial measured."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from harness.power.study import TRIALS, Study
from harness.power.summary import TARGETS, Rate
from harness.report.palette import INKS

_MARKS = ("o", "s", "^")
_INKS = (INKS["head"], INKS["base"], INKS["doubt"])
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.hashsalt": "power",
}


def draw(study: Study, found: Sequence[Rate]) -> bytes:
    """SVG bytes; the same study gives the same bytes."""
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(7.6, 7.0), layout="constrained")
        rates, ratios = canvas.subplots(2, 1, height_ratios=[3, 2])
        _draw_rates(rates, found)
        _draw_ratios(ratios, study)
        canvas.legend(loc="outside upper left", frameon=False, fontsize=9)
        out = BytesIO()
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": "Power of three rules"})
    return out.getvalue()


def _draw_rates(axis: Axes, found: Sequence[Rate]) -> None:
    rules = list(dict.fromkeys(rate.rule for rate in found))
    for place, rule in enumerate(rules):
        mine = [rate for rate in found if rate.rule == rule]
        at = [rate.delay + 0.09 * (place - 1) for rate in mine]
        shares = [100 * rate.share for rate in mine]
        spans = [
            [100 * (rate.share - rate.low) for rate in mine],
            [100 * (rate.high - rate.share) for rate in mine],
        ]
        ink, mark = _INKS[place % len(_INKS)], _MARKS[place % len(_MARKS)]
        axis.errorbar(at, shares, yerr=spans, fmt=f"-{mark}", color=ink, label=rule, capsize=3, linewidth=1.4)
    for delay, (_, target) in TARGETS.items():
        axis.plot([delay - 0.3, delay + 0.3], [100 * target] * 2, color=INKS["ink"], linewidth=1.2, linestyle="--")
    counts = {rate.delay: rate.trials for rate in found}
    axis.set_xticks(list(counts), [f"{delay} %\n{count} trials" for delay, count in counts.items()])
    axis.set_ylabel("trials with an alarm, %")
    axis.set_ylim(-4, 104)
    axis.grid(axis="y", color=INKS["grid"])
    axis.set_title(
        "Alarms by planted delay (bars: exact 95 % interval; dashes: target of ours)", loc="left", fontsize=10
    )


def _draw_ratios(axis: Axes, study: Study) -> None:
    """Every trial's median ratio, ours beside that of the runs that were not interleaved."""
    for delay in TRIALS:
        trials = [result for result in study.results if result.delay == delay]
        for place, result in enumerate(trials):
            spread = 0.3 * (((place * 0.618034) % 1) - 0.5)
            rival = 100 * (sum(result.head) / sum(result.base) - 1)
            axis.plot(100 * (result.ratio - 1), delay + 0.22 + spread, "o", color=_INKS[0], markersize=3.5, alpha=0.7)
            axis.plot(rival, delay - 0.22 + spread, "^", color=_INKS[2], markersize=3.5, alpha=0.7)
        axis.plot([delay, delay], [delay - 0.5, delay + 0.5], color=INKS["ink"], linewidth=1)
    axis.set_yticks(list(TRIALS), [f"{delay} %" for delay in TRIALS])
    axis.set_ylabel("planted")
    axis.set_xlabel("measured change, % (dots: paired rounds; triangles: means of runs one side after the other)")
    axis.grid(axis="x", color=INKS["grid"])
