"""What other tools would say about the same cost: runs of base first, then runs of head. Pure.

``mann_whitney`` is benchstat's rule: a two-sided Mann-Whitney U test at 0.05 on the runs, the direction from the
medians. ``mean_threshold`` is pytest-benchmark's ``--benchmark-compare-fail=mean:5%``: the mean grew by more than 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

ALPHA = 0.05
THRESHOLD = 0.05


def mann_whitney(base: Sequence[float], head: Sequence[float]) -> str:
    """``slower``, ``faster`` or ``~``."""
    if mann_whitney_p(base, head) >= ALPHA:
        return "~"
    return "slower" if median(head) > median(base) else "faster"


def mann_whitney_p(base: Sequence[float], head: Sequence[float]) -> float:
    """Two-sided p, exact where there are no ties (scipy decides)."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(head, base, alternative="two-sided").pvalue)


def mean_threshold(base: Sequence[float], head: Sequence[float]) -> str:
    """``slower`` or ``~``: the rule knows no other word."""
    return "slower" if fmean(head) > fmean(base) * (1 + THRESHOLD) else "~"
