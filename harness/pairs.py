"""Judging repeats that ran in pairs, base next to head: ratios of matched rounds, and their interval. Pure.

Both sides of a pair did the same work round by round (the token control says so), so round i is compared with round i
and the pair's figure is the median of those ratios: a neighbour that steals a third of the rounds moves it little, and
rounds of different widths do not blur it. What hits fewer than half of the rounds (a stall now and then) does not move
it either; ``whole_log_ratios`` has it, and a report shows both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median, median_low

from harness.model import Samples
from harness.sequential import interval_at, plan, planned_looks
from harness.verdict import Interval

OUTLIER_MADS = 5.0
"""A pair further from the median than this many median absolute deviations is pointed at. It is never left out."""

STEADY_FLOOR = 0.01


@dataclass(frozen=True, slots=True)
class Judged:
    """What the pairs of one quantity say: the median ratio, its interval at the last look reached, and doubts."""

    ratio: float
    interval: Interval | None
    pairs: int
    notes: tuple[str, ...]


def judge_pairs(base: Samples, head: Samples, alpha: float, most_pairs: int) -> Judged:
    """The verdict's numbers of one quantity from its pairs, whichever of them there are yet."""
    logs = log_ratios(base, head)
    reached = plan(planned_looks(most_pairs), alpha).latest(len(logs))
    interval = None if reached is None else interval_at(logs, reached, alpha)
    notes = [f"{len(logs)} pairs, {alpha:.3g} of error allowed over all looks", *_outliers(logs)]
    if matched(base, head):
        whole = math.exp(median(whole_log_ratios(base, head)))
        notes.append(f"rounds are matched one by one; by the sum of all rounds the ratio is {whole:.4f}")
    return Judged(math.exp(median(logs)), interval, len(logs), tuple(notes))


def matched(base: Samples, head: Samples) -> bool:
    """Whether every repeat of both sides has the same number of raw rounds."""
    counts = {len(rounds) for side in (base, head) for rounds in side.rounds}
    return len(counts) == 1 and counts != {0} and len(base.rounds) == len(head.rounds)


def log_ratios(base: Samples, head: Samples) -> list[float]:
    """Log of head over base, one figure per pair: from matched rounds where there are any, else from the repeats."""
    if not matched(base, head):
        return whole_log_ratios(base, head)
    return [matched_log_ratio(one, other) for one, other in zip(base.rounds, head.rounds, strict=True)]


def whole_log_ratios(base: Samples, head: Samples) -> list[float]:
    """Log of head over base of the repeats' own figures."""
    return [math.log(other / one) for one, other in zip(base.values, head.values, strict=False)]


def matched_log_ratio(base: Sequence[float], head: Sequence[float]) -> float:
    """Median over the rounds of log(head's round / base's same round)."""
    return median(math.log(other / one) for one, other in zip(base, head, strict=True))


def control_log_ratios(base: Samples, head: Samples) -> list[float]:
    """The A/A control, log of later over earlier of one build: the session's control pairs, or neighbours in ABBA.

    Where base and head took turns, the session ran pairs of one build for it. Where they ran one process after the
    other, the control is in the order itself: pairs come as AB, BA, AB, BA, so between two pairs the same side stands
    twice, head within a block and base between two blocks.
    """
    if head.pairing is not None and head.pairing.control is not None:
        return list(head.pairing.control)
    sides = (base, head)
    found = []
    for earlier in range(min(len(base.values), len(head.values)) - 1):
        side = sides[1] if earlier % 2 == 0 else sides[0]
        found.append(later_over_earlier(side, side, earlier, earlier + 1))
    return found


def later_over_earlier(one: Samples, other: Samples, earlier: int = 0, later: int = 0) -> float:
    """Log of repeat ``later`` of ``other`` over repeat ``earlier`` of ``one``: of matched rounds if there are any."""
    if one.rounds and len(one.rounds[earlier]) == len(other.rounds[later]):
        return matched_log_ratio(one.rounds[earlier], other.rounds[later])
    return math.log(other.values[later] / one.values[earlier])


def control_spread(control: Sequence[float], pairs: int) -> float:
    """By how much the median of ``pairs`` such pairs would be off if nothing had changed: one standard error, a ratio.

    A handful of control pairs has no say about direction (the order of the sides cancels it), but about size: their
    median size is that of a normal distribution whose standard deviation is 1.4826 times as large, and the median of n
    draws from that has sqrt(pi / 2 / n) of it. Of two in the middle the smaller counts: one bad pair of two shall not
    blunt a verdict, and whether an interval can be trusted does not hang on this. 0 without a control or without pairs.
    """
    if not control or not pairs:
        return 0.0
    deviation = median_low(map(abs, control)) / NormalDist().inv_cdf(0.75)
    return math.expm1(deviation * math.sqrt(math.pi / 2 / pairs))


def drift(samples: Samples) -> float:
    """Second half over first half of one side's repeats, as a ratio of medians; 1 with fewer than four."""
    half = len(samples.values) // 2
    if half < 2:
        return 1.0
    return median(samples.values[-half:]) / median(samples.values[:half])


def steadiness(base: Samples, head: Samples) -> tuple[str, ...]:
    """Doubts about the stretch of time itself: both sides got slower or faster while they were measured."""
    both = [drift(side) for side in (base, head)]
    if all(ratio > 1 + STEADY_FLOOR for ratio in both) or all(ratio < 1 - STEADY_FLOOR for ratio in both):
        moved = ", ".join(
            f"{name} {100 * (ratio - 1):+.1f} %" for name, ratio in zip(("base", "head"), both, strict=True)
        )
        return (f"not steady: second half against first half of the repeats: {moved} (ABBA order cancels a drift)",)
    return ()


def outliers(logs: Sequence[float]) -> list[int]:
    """Which pairs, counted from 1, lie far from the others."""
    if len(logs) < 4:
        return []
    middle = median(logs)
    scale = median(abs(value - middle) for value in logs)
    return [index for index, value in enumerate(logs, 1) if scale > 0 and abs(value - middle) > OUTLIER_MADS * scale]


def _outliers(logs: Sequence[float]) -> list[str]:
    """Pairs far from the others, named; nothing is dropped."""
    far = outliers(logs)
    if not far:
        return []
    named = ", ".join(f"{index} ({100 * math.expm1(logs[index - 1]):+.1f} %)" for index in far[:4])
    more = f" and {len(far) - 4} more" if len(far) > 4 else ""
    return [f"far from the others, and kept: pair {named}{more}"]
