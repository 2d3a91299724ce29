"""Sums small enough to do by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suites.oracles import dense


def test_linear_and_its_magnitude() -> None:
    x = np.array([[1.0, -2.0]])
    weight = np.array([[3.0, 1.0], [0.0, 5.0], [1.0, 1.0]])
    assert dense.linear(x, weight).tolist() == [[1.0, -10.0, -1.0]]
    assert dense.linear_magnitude(x, weight).tolist() == [[5.0, 10.0, 3.0]]
    residual = np.array([[10.0, -10.0, 0.5]])
    assert dense.linear(x, weight, residual).tolist() == [[11.0, -20.0, -0.5]]
    assert dense.linear_magnitude(x, weight, residual).tolist() == [[15.0, 20.0, 3.5]]


def test_candidate_logits_read_their_own_rows() -> None:
    hidden = np.array([[1.0, 10.0], [2.0, 0.0]])
    weight = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert dense.candidate_logits(hidden, weight, np.array([[2, 0], [1, 2]])).tolist() == [[11.0, 1.0], [0.0, 2.0]]


def test_embedding_repeats_and_orders() -> None:
    weight = np.arange(6.0).reshape(3, 2)
    assert dense.embedding(np.array([2, 0, 2]), weight).tolist() == [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]


def test_rms_norm_of_three_and_four() -> None:
    out = dense.rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0)
    root = math.sqrt(12.5)
    assert out[0] == pytest.approx([3 / root, 8 / root], rel=1e-15)


def test_rms_norm_epsilon_is_inside_the_root_and_keeps_zero() -> None:
    assert dense.rms_norm(np.zeros((1, 3)), np.ones(3), 1e-5).tolist() == [[0.0, 0.0, 0.0]]
    assert dense.rms_norm(np.array([[1.0]]), np.ones(1), 3.0).tolist() == [[0.5]]


def test_silu_mul_takes_the_gate_from_the_first_half() -> None:
    out = dense.silu_mul(np.array([[0.0, math.log(3.0), 7.0, 2.0]]))
    assert out[0] == pytest.approx([0.0, 2 * 0.75 * math.log(3.0)], rel=1e-15)


def test_sigmoid_does_not_overflow() -> None:
    with np.errstate(over="raise"):
        assert dense.sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist() == [0.0, 0.5, 1.0]


def test_an_odd_gate_up_width_is_refused() -> None:
    with pytest.raises(ValueError, match="got 3"):
        dense.silu_mul(np.zeros((1, 3)))
