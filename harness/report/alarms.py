"""The picture of a power study: alarms against what was planted, a line a rule, and what each trial measured."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from harness.report.document import Alarms
from harness.report.palette import INKS

_MARKS, _LINES = ("o", "s", "^"), ("-", "--", ":")
_INKS = (INKS["head"], INKS["base"], INKS["doubt"])
_GOLDEN = 0.618034  # spreads the dots of one row without a random number


def alarms(data: Alarms, width: float) -> Canvas:
    """Rates above, trials below; both have the planted delay as their scale."""
    canvas = Canvas(figsize=(width, 7.4), layout="constrained")
    rates, trials = canvas.subplots(2, 1, height_ratios=[3, 2])
    for axis in (rates, trials):
        axis.patch.set_alpha(0)
    _draw_rates(rates, data)
    _draw_trials(trials, data)
    canvas.legend(*rates.get_legend_handles_labels(), loc="outside upper left", ncols=1)
    return canvas


def _draw_rates(axis: Axes, data: Alarms) -> None:
    rules = list(dict.fromkeys(rate.rule for rate in data.rates))
    for place, rule in enumerate(rules):
        mine = [rate for rate in data.rates if rate.rule == rule]
        at = [rate.delay + 0.09 * (place - 1) for rate in mine]
        spans = [[rate.share - rate.low for rate in mine], [rate.high - rate.share for rate in mine]]
        shares = [rate.share for rate in mine]
        form, ink = f"{_LINES[place]}{_MARKS[place]}", _INKS[place]
        axis.errorbar(at, shares, yerr=spans, fmt=form, color=ink, label=rule, capsize=3, linewidth=1.4)
    for delay, target in data.targets:
        axis.plot([delay - 0.3, delay + 0.3], [target] * 2, color=INKS["ink"], linewidth=1.2, linestyle="--")
    counts = {rate.delay: rate.trials for rate in data.rates}
    axis.set_xticks(list(counts), [f"{delay} %\n{count} trials" for delay, count in counts.items()])
    axis.set_ylabel("trials with an alarm, %")
    axis.set_ylim(-4, 104)
    axis.grid(axis="y")


def _draw_trials(axis: Axes, data: Alarms) -> None:
    delays = sorted({trial.delay for trial in data.trials})
    for row, delay in enumerate(delays):
        mine = [trial for trial in data.trials if trial.delay == delay]
        for number, trial in enumerate(mine):
            spread = 0.3 * ((number * _GOLDEN) % 1 - 0.5)
            axis.plot(trial.paired, row + 0.22 + spread, _MARKS[0], color=_INKS[0], markersize=3.5, alpha=0.7)
            axis.plot(trial.in_a_row, row - 0.22 + spread, _MARKS[2], color=_INKS[2], markersize=3.5, alpha=0.7)
        axis.plot([delay, delay], [row - 0.5, row + 0.5], color=INKS["ink"], linewidth=1)
    axis.set_yticks(range(len(delays)), [f"{delay} %" for delay in delays])
    axis.set_ylabel("planted (line)")
    axis.set_xlabel("measured change, % (dots: pairs; triangles: means of runs one side after the other)")
    axis.grid(axis="x")
