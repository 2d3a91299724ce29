"""What stays of a row of logits, by definition: threshold top-k, then top-p over the enlarged set, ties by id.

Exact arithmetic wherever it is possible: values are compared as they are, weights are `exp` in fp64 turned into
integers, and sums and comparisons are made in integers. So the only error is that of `exp` itself, below 2**-52
relative; it is inside every band below.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_WEIGHT_SCALE = 2**100
"""Weights below 2**-100 of the largest are lost: less than any band, and far less than fp64 itself keeps of a sum."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The survivors of top-k in the order that top-p walks them.

    ``ids[j]`` is the j-th, ``reached[j]`` the exact mass of it and all before it. So ``reached[j - 1]`` is ahead of it.
    """

    ids: I64
    reached: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.reached[-1]

    def keep(self, top_p: float, band: Fraction = Fraction(0)) -> tuple[int, int]:
        """Smallest and largest number of survivors of top-p that an implementation within ``band`` may keep.

        With a band of 0 both are the exact answer. ``top_p`` is the fp32 number that the row asks for.
        """
        if top_p >= 1:
            return len(self.ids), len(self.ids)
        low, high = (
            bisect_left(self.reached, math.ceil((Fraction(top_p) + side) * self.total), 0, len(self.ids) - 1) + 1
            for side in (-band, band)
        )
        return low, high

    def kept_ids(self, top_p: float) -> frozenset[int]:
        """Exactly what stays."""
        return frozenset(self.ids[: self.keep(top_p)[0]].tolist())

    def edge_margin(self, top_p: float) -> float:
        """Distance of ``top_p`` from the nearest share at which the kept set changes; inf where top-p is off."""
        if top_p >= 1:
            return math.inf
        last = self.keep(top_p)[0] - 1
        edges = self.reached[max(last - 1, 0) : last + 1]
        return min(abs(edge / self.total - top_p) for edge in edges)

    def probabilities(self, top_p: float, width: int) -> F64:
        """The distribution after both cutoffs, fp64 [width]."""
        count = self.keep(top_p)[0]
        total = self.reached[count - 1]
        out = np.zeros(width, dtype=np.float64)
        weights = (after - before for before, after in pairwise((0, *self.reached[:count])))
        out[self.ids[:count]] = [weight / total for weight in weights]
        return out


def fault(row: F32) -> str | None:
    """Why nothing may be drawn from a row (after temperature): NaN before +inf before nothing finite; or None."""
    if np.isnan(row).any():
        return "nan"
    if np.isposinf(row).any():
        return "+inf"
    return None if np.isfinite(row).any() else "nothing finite"


def after_temperature(row: F32, temperature: float) -> F32:
    """The fp32 quotient that every later step is defined on."""
    with np.errstate(over="ignore"):
        return row / np.float32(temperature)


def rank(row: F32 | F64, top_k: int) -> Ranking:
    """Threshold top-k of a row after temperature; `top_k` of 0 and below, or V and above, keeps all."""
    width = len(row)
    ids = np.arange(width)
    if 0 < top_k < width:
        ids = ids[row >= np.partition(row, width - top_k)[width - top_k]]
    values = row[ids].astype(np.float64)
    order = np.lexsort((-ids, -values))
    ids, values = ids[order], values[order]
    weights = np.exp(values - values[0])
    return Ranking(ids, tuple(accumulate(int(weight * _WEIGHT_SCALE) for weight in weights.tolist())))


def fixed_point_band(survivors: int) -> Fraction:
    """How far a share of mass may be off that is summed from 40-bit integer weights.

    A weight is off by at most 2**-28 of itself (a polynomial in 31 bits) and 2**-41 of the largest (its rounding); a
    share is a quotient of two such sums, and the total is at least the largest weight.
    """
    return Fraction(1, 2**27) + survivors * Fraction(1, 2**40)


def total_variation(one: F64, other: F64) -> float:
    """Half the L1 distance of two distributions."""
    return 0.5 * float(np.abs(one - other).sum())
