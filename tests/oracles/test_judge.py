"""A failed judgement names the place, both values and the limit."""

from __future__ import annotations

import numpy as np
import pytest

from suites.oracles import judge
from suites.oracles.tolerance import Tolerance, exact


def test_nan_is_never_within() -> None:
    with pytest.raises(AssertionError, match=r"first at \[1\]: got np.float64\(nan\)"):
        judge.assert_within(np.array([0.0, np.nan]), np.zeros(2), Tolerance(np.ones(2), "test"), "nan")


def test_a_shape_is_not_broadcast() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1, 2\), expected \(2,\)"):
        judge.assert_within(np.zeros((1, 2)), np.zeros(2), exact(np.zeros(2)), "shape")


def test_an_oracle_that_is_not_finite_is_no_oracle() -> None:
    with pytest.raises(AssertionError, match="the oracle itself"):
        judge.assert_within(np.zeros(1), np.array([np.inf]), exact(np.zeros(1)), "oracle")


def test_message_has_coordinate_values_limit_and_source() -> None:
    tolerance = Tolerance(np.full((2, 2), 0.25), "a quarter, for the test")
    with pytest.raises(AssertionError) as caught:
        judge.assert_within(np.array([[0.0, 0.0], [0.0, 0.5]]), np.zeros((2, 2)), tolerance, "op")
    for part in ("op: 1 of 4", "[1, 1]", "5.000e-01", "2.500e-01", "a quarter, for the test"):
        assert part in str(caught.value)


def test_bits_tell_zeros_apart_and_nans_alike() -> None:
    judge.assert_bits_equal(np.array([np.nan], dtype=np.float32), np.array([np.nan], dtype=np.float32), "nan")
    with pytest.raises(AssertionError, match="0x80000000"):
        judge.assert_bits_equal(np.array([-0.0], dtype=np.float32), np.array([0.0], dtype=np.float32), "zero")
    with pytest.raises(AssertionError, match="float32"):
        judge.assert_bits_equal(np.zeros(1, dtype=np.float32), np.zeros(1), "dtype")


def test_worst_share() -> None:
    tolerance = Tolerance(np.array([1.0, 2.0, 0.0]), "test")
    assert judge.worst_share(np.array([0.5, 0.5, 7.0]), np.array([0.0, 0.0, 7.0]), tolerance) == 0.5


def test_relative_l2() -> None:
    assert judge.relative_l2(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
