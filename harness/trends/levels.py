"""Where the level of a series of times steps, and how far one night may stray from it. Numbers in, numbers out.

A step is proposed by ruptures (exact segmentation of log values, at least ``MIN_SEGMENT`` values per side, so that one
bad night is no step) and stands only if an exact rank test and the margin agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from harness.stats import median

MIN_SEGMENT = 3
LEVEL = 0.95
# A step costs 2 sigma^2 log n (the Bayesian information criterion for a place and a level), doubled so that the search
# proposes little that the test then throws away.
PENALTY = 2.0
EXACT_UP_TO = 2500  # pairs; beyond that the normal approximation of the rank test is as good and quicker
# A night is out of line beyond the margin or, in a noisy series, beyond this many standard deviations (1 in 370).
NIGHT_SIGMAS = 3.0
# Median |difference of neighbours| -> standard deviation, for Gaussian noise: 1 / (0.6745 * sqrt(2)).
SIGMA_OF_DIFFERENCES = 1.0483
LEAST_SIGMA = 1e-6  # of log values: what is steadier than that has no noise worth estimating


def confirmed_steps(values: Sequence[float], margin: float) -> list[int]:
    """Edges that survive: the weakest is dropped and its neighbours joined until test and margin agree with all."""
    edges = proposed_steps(values)
    while edges:
        bounds = [0, *edges, len(values)]
        weakest, strength = -1, math.inf
        for place, (left, edge, right) in enumerate(zip(bounds, bounds[1:], bounds[2:], strict=False)):
            change = abs(math.log(median(values[edge:right]) / median(values[left:edge])))
            p = corrected_p(values[left:edge], values[edge:right], len(values))
            stands = p <= 1 - LEVEL and change > math.log1p(margin)
            if not stands and change < strength:
                weakest, strength = place, change
        if weakest < 0:
            break
        del edges[weakest]
    return edges


def proposed_steps(values: Sequence[float]) -> list[int]:
    """Where the level of positive ``values`` may step: indices of the first value of each new level."""
    if len(values) < 2 * MIN_SEGMENT:
        return []
    import numpy as np
    import ruptures

    logs = [math.log(value) for value in values]
    sigma = SIGMA_OF_DIFFERENCES * median([abs(after - before) for before, after in pairwise(logs)])
    penalty = PENALTY * 2 * max(sigma, LEAST_SIGMA) ** 2 * math.log(len(logs))
    # A running median of three takes a single bad night out and leaves a step where it is.
    smooth = [logs[0], *(median(logs[at - 1 : at + 2]) for at in range(1, len(logs) - 1)), logs[-1]]
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_SEGMENT)
    return [int(edge) for edge in search.fit(np.asarray(smooth)).predict(pen=penalty)[:-1]]


def corrected_p(before: Sequence[float], after: Sequence[float], searched: int) -> float:
    """Two-sided p of the rank test, times the places where a step of ``searched`` values could have been found."""
    return min(1.0, _rank_p(before, after) * max(1, searched - 2 * MIN_SEGMENT + 1))


def night_margin(before: Sequence[float], margin: float) -> float:
    """How far a night may stray from ``before``: the margin or, in a noisy series, what its own jumps allow."""
    jumps = [abs(math.log(after / before)) for before, after in pairwise(before)]
    return max(margin, math.expm1(NIGHT_SIGMAS * SIGMA_OF_DIFFERENCES * median(jumps)))


def _rank_p(before: Sequence[float], after: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu

    exact = len(before) * len(after) <= EXACT_UP_TO
    return float(mannwhitneyu(before, after, method="exact" if exact else "asymptotic").pvalue)
