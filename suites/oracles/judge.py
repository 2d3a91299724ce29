"""Assertions that fail with a diagnosis: the first coordinate, both values, what was allowed and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from suites.oracles.arrays import F64
from suites.oracles.tolerance import Tolerance


def _first(where: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(axis[0]) for axis in np.nonzero(where))


def assert_within(actual: F64, expected: F64, tolerance: Tolerance, what: str) -> None:
    """Every element of ``actual`` is finite and within its own limit of ``expected``; else AssertionError."""
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {actual.shape}, expected {expected.shape}")
    if not np.isfinite(expected).all() or not np.isfinite(tolerance.limit).all():
        at = _first(~np.isfinite(expected + tolerance.limit))
        raise AssertionError(f"{what}: the oracle itself is not finite at {list(at)}")
    error = np.abs(actual - expected)
    bad = ~(error <= tolerance.limit)  # a NaN is bad
    if bad.any():
        at = _first(bad)
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.size} elements out of bound; first at {list(at)}: got {actual[at]!r}, "
            f"expected {expected[at]!r}, off by {error[at]:.3e}, allowed {tolerance.limit[at]:.3e} ({tolerance.source})"
        )


def bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory as unsigned integers, so that NaN equals itself and -0 differs from +0."""
    contiguous = np.ascontiguousarray(values)
    return contiguous.view(f"u{contiguous.dtype.itemsize}")


def assert_bits_equal(actual: npt.NDArray[Any], expected: npt.NDArray[Any], what: str) -> None:
    """Same dtype, same shape, same bits; raises AssertionError naming the first coordinate that differs."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise AssertionError(f"{what}: {actual.dtype}{actual.shape} against {expected.dtype}{expected.shape}")
    differ = bits(actual) != bits(expected)
    if differ.any():
        at = _first(differ)
        raise AssertionError(
            f"{what}: {int(differ.sum())} of {differ.size} elements differ; first at {list(at)}: "
            f"{actual[at]!r} (0x{int(bits(actual)[at]):x}) against {expected[at]!r} (0x{int(bits(expected)[at]):x})"
        )


def worst_share(actual: F64, expected: F64, tolerance: Tolerance) -> float:
    """Largest share of its limit that any element used (0 where nothing differs)."""
    error = np.abs(actual - expected)
    share = np.divide(error, tolerance.limit, out=np.zeros_like(error), where=error > 0)
    return float(share.max(initial=0.0))


def relative_l2(actual: F64, expected: F64) -> float:
    """``||actual - expected|| / ||expected||`` over everything."""
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
