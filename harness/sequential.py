"""When to stop measuring pairs: exact order-statistic intervals at planned looks, with one error rate over all. Pure.

A pair is one process of each side, run next to each other; its figure is the log of head over base. Whether a pair
lies above or below the true median is a fair coin, whatever the noise looks like, so that the interval from the c-th
smallest to the c-th largest pair misses the median exactly as often as a random walk leaves a corridor. Looking again
and again would miss it more often than once; here every look takes its share of one allowance (alpha spending: Lan and
DeMets, Biometrika 70, 1983; the share grows with the number of pairs), and what a corridor at several looks amounts to
is counted path by path. The intervals are repeated confidence intervals (Jennison and Turnbull, J. R. Stat. Soc. B 51,
1989): together, over all looks, they miss the median with at most ``alpha``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.verdict import Interval

_SLACK = 1e-12
FIRST_LOOK, LOOK_EVERY, MOST_PAIRS = 8, 2, 24
"""Eight pairs are the fewest that leave room for more than one look at 5 %; two pairs are one ABBA block."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look after ``pairs`` pairs: the interval leaves ``cut - 1`` pairs off at each end; ``cut`` 0 gives none.

    ``spent`` is the chance that any interval up to here misses the median.
    """

    pairs: int
    cut: int
    spent: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All looks, fixed before the first pair; ``alpha`` is what they may spend together."""

    looks: tuple[Look, ...]
    alpha: float

    @property
    def most_pairs(self) -> int:
        """Where measuring ends even if nothing is decided."""
        return self.looks[-1].pairs

    def at(self, pairs: int) -> Look | None:
        """The look that is due after exactly ``pairs`` pairs."""
        return next((look for look in self.looks if look.pairs == pairs), None)

    def latest(self, pairs: int) -> Look | None:
        """The last look that ``pairs`` pairs reach."""
        return next((look for look in reversed(self.looks) if look.pairs <= pairs), None)


def planned_looks(most_pairs: int = MOST_PAIRS) -> tuple[int, ...]:
    """After ``FIRST_LOOK`` pairs and then after every block, up to ``most_pairs``."""
    if most_pairs < 2 or most_pairs % LOOK_EVERY:
        raise ValueError(f"{most_pairs} pairs; allowed: an even number from 2, since a block has two")
    return tuple(range(min(FIRST_LOOK, most_pairs), most_pairs + 1, LOOK_EVERY))


@functools.cache
def plan(looks: tuple[int, ...], alpha: float) -> Plan:
    """The widest cuts whose chance of a miss, counted over all paths, stays within ``alpha`` x share of the pairs."""
    if not looks or list(looks) != sorted(set(looks)) or looks[0] < 1:
        raise ValueError(f"looks after {list(looks)} pairs; allowed: growing numbers from 1")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; allowed: between 0 and 1")
    inside = [1.0]  # [s]: chance that s of the pairs so far lie below the median and no look has missed
    spent, done, made = 0.0, 0, []
    for pairs in looks:
        for _ in range(pairs - done):
            inside = [(low + high) / 2 for low, high in zip([*inside, 0.0], [0.0, *inside], strict=True)]
        done = pairs
        allowed = alpha * pairs / looks[-1] + _SLACK
        cut = 0
        while cut < pairs // 2 and spent + _outside(inside, cut + 1) <= allowed:
            cut += 1
        spent += _outside(inside, cut)
        inside = [0.0 if s < cut or s > pairs - cut else chance for s, chance in enumerate(inside)]
        made.append(Look(pairs, cut, spent))
    return Plan(tuple(made), alpha)


def _outside(inside: Sequence[float], cut: int) -> float:
    """Chance that fewer than ``cut`` pairs lie on one of the two sides."""
    return sum(inside[:cut]) + sum(inside[len(inside) - cut :])


def interval_at(log_ratios: Sequence[float], look: Look, alpha: float) -> Interval | None:
    """The interval of the median ratio at ``look``, from the first ``look.pairs`` pairs; ``None`` where it gives none.

    ``level`` is that of all looks together: ``1 - alpha``.
    """
    if look.cut == 0:
        return None
    if len(log_ratios) < look.pairs:
        raise ValueError(f"{len(log_ratios)} pairs for a look after {look.pairs}")
    ordered = sorted(log_ratios[: look.pairs])
    which = f"{look.cut} and {look.pairs + 1 - look.cut} of {look.pairs}"
    method = f"order statistics {which} paired ratios, exact over all looks"
    return Interval(math.exp(ordered[look.cut - 1]), math.exp(ordered[-look.cut]), 1 - alpha, method)


def share(alpha: float, quantities: int) -> float:
    """What one of ``quantities`` judged together may spend, so that all of them together stay within ``alpha``.

    Bonferroni's bound: it holds however the quantities depend on each other.
    """
    if quantities < 1:
        raise ValueError(f"{quantities} quantities; allowed: 1 or more")
    return alpha / quantities


def least_spent(pairs: int) -> float:
    """The smallest two-sided error that ``pairs`` pairs can give at one look: all of them on one side."""
    return min(1.0, 2.0 ** (1 - pairs))
