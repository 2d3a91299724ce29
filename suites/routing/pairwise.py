"""Few cases that show every pair of values of any two axes together. The same axes give the same cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

Levels = Mapping[str, Sequence[str]]
Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def all_pairs(axes: Levels) -> set[Pair]:
    """Every pair of values of two different axes, in the order of the axes."""
    return {
        ((first, one), (second, other))
        for first, second in combinations(axes, 2)
        for one in axes[first]
        for other in axes[second]
    }


def pairs_of(case: Case, axes: Levels) -> set[Pair]:
    """The pairs that one case shows."""
    return {((first, case[first]), (second, case[second])) for first, second in combinations(axes, 2)}


def generate(axes: Levels) -> list[Case]:
    """Greedy cover: a case starts with a pair that is missing and takes, axis by axis, the value that shows most more.

    Any combination of values must be legal. The result is about as long as the product of the two longest axes.
    """
    missing = all_pairs(axes)
    cases: list[Case] = []
    while missing:
        case: Case = dict(min(missing))
        for axis in axes:
            if axis not in case:
                case[axis] = max(axes[axis], key=lambda value: _gain(case, axis, value, axes, missing))
        missing -= pairs_of(case, axes)
        cases.append({axis: case[axis] for axis in axes})
    return cases


def _gain(case: Case, axis: str, value: str, axes: Levels, missing: set[Pair]) -> int:
    order = list(axes)
    gain = 0
    for other, chosen in case.items():
        pair = ((other, chosen), (axis, value))
        gain += (pair if order.index(other) < order.index(axis) else pair[::-1]) in missing
    return gain
