"""What few noisy repeats can say: medians, intervals of a ratio, and a three-way decision. Pure.

Replicates are processes, not iterations. With few of them the interval is exact: its confidence comes from counting
orderings, not from a bell curve. Where the counts cannot reach the level at all, there is no interval, and ``needs_n``
says how many repeats there must be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from harness.model import Better
from harness.verdict import Interval, MetricOutcome

BOOTSTRAP_FROM = 20  # repeats per side; below it a percentile bootstrap is too narrow, and counting is cheap
BOOTSTRAP_DRAWS = 10_000
BOOTSTRAP_SEED = 70
NEEDS_N_LIMIT = 1000


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def least_p(base_n: int, head_n: int) -> float:
    """The smallest two-sided p that two independent samples can give: one of all orderings, both ways."""
    return min(1.0, 2 / math.comb(base_n + head_n, head_n))


def needs_n(base_n: int, level: float) -> int:
    """How many repeats head needs against ``base_n`` of base before any interval at ``level`` exists; 0 if none do."""
    for n in range(1, NEEDS_N_LIMIT):
        if least_p(base_n, n) <= 1 - level + 1e-12:
            return n
    return 0


def needs_n_each(level: float) -> int:
    """How many repeats each side needs if both are measured again."""
    return next(n for n in range(1, NEEDS_N_LIMIT) if least_p(n, n) <= 1 - level + 1e-12)


def ratio_interval(base: Sequence[float], head: Sequence[float], level: float) -> Interval | None:
    """Interval of the ratio head/base of two independent sets of positive repeats; ``None`` where n cannot give one."""
    if min(len(base), len(head)) >= BOOTSTRAP_FROM:
        return bootstrap_interval(base, head, level)
    return ordered_interval(base, head, level)


def ordered_interval(base: Sequence[float], head: Sequence[float], level: float) -> Interval | None:
    """Order statistics of all pairwise ratios (Hodges and Lehmann): exact for any distribution shifted by a factor."""
    ratios = sorted(math.log(h) - math.log(b) for h in head for b in base)
    tail = list(accumulate(_mann_whitney_counts(len(base), len(head))))
    orderings = tail[-1]
    cut = 0  # how many ratios may be left off at each end
    while cut < len(ratios) // 2 and 2 * tail[cut] <= (1 - level + 1e-12) * orderings:
        cut += 1
    if cut == 0:
        return None
    covered = 1 - 2 * tail[cut - 1] / orderings
    return Interval(
        math.exp(ratios[cut - 1]),
        math.exp(ratios[-cut]),
        covered,
        f"order statistics of {len(ratios)} pairwise ratios, exact",
    )


def _mann_whitney_counts(m: int, n: int) -> list[int]:
    """``counts[u]``: in how many orderings of m + n distinct values ``u`` pairs have the first above the second."""
    counts = [1] + [0] * (m * n)
    for i in range(1, n + 1):
        for u in range(m * n, m + i - 1, -1):  # multiply by 1 - q^(m+i)
            counts[u] -= counts[u - m - i]
        for u in range(i, m * n + 1):  # divide by 1 - q^i
            counts[u] += counts[u - i]
    return counts


def bootstrap_interval(base: Sequence[float], head: Sequence[float], level: float) -> Interval:
    """Percentile bootstrap of the ratio of medians, seeded so that the same samples give the same interval."""
    import numpy as np

    random = np.random.Generator(np.random.Philox(BOOTSTRAP_SEED))

    def medians(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        data = np.asarray(values, dtype=np.float64)
        drawn: np.ndarray[tuple[int], np.dtype[np.float64]] = np.median(
            data[random.integers(0, len(data), size=(BOOTSTRAP_DRAWS, len(data)))], axis=1
        )
        return drawn

    ratios = medians(head) / medians(base)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, f"bootstrap of the ratio of medians, {BOOTSTRAP_DRAWS} draws")


def decide(interval: Interval, margin: float, better: Better) -> MetricOutcome:
    """Where the interval lies against the margin: outside it, inside it, or across its edge.

    ``margin`` is relative and meant both ways as a factor: from ``1 / (1 + margin)`` to ``1 + margin``.
    """
    top, bottom = 1 + margin, 1 / (1 + margin)
    if interval.low > top:
        return _directed(better, higher=True)
    if interval.high < bottom:
        return _directed(better, higher=False)
    if interval.low >= bottom and interval.high <= top:
        return MetricOutcome.SAME
    return MetricOutcome.UNDECIDED


def _directed(better: Better, *, higher: bool) -> MetricOutcome:
    if better is Better.NEITHER:
        return MetricOutcome.CHANGED
    return MetricOutcome.BETTER if (better is Better.HIGHER) == higher else MetricOutcome.WORSE


def repeats_to_decide(interval: Interval, margin: float, n: int) -> int:
    """About how many repeats would shrink the interval enough to decide, by the square-root rule; at least n + 1.

    The interval decides once its half width is below the distance of its centre to the nearer edge of the margin.
    """
    low, high, edge = math.log(interval.low), math.log(interval.high), math.log1p(margin)
    centre, half = (low + high) / 2, (high - low) / 2
    distance = abs(abs(centre) - edge)
    if distance <= half / 32:  # the ratio sits on the edge: no feasible number of repeats moves it off
        return 0
    return max(n + 1, math.ceil(n * (half / distance) ** 2))
