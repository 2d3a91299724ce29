"""The delta rule on numbers small enough to follow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suites.oracles import dense, gdn


def test_conv_is_causal_and_uses_the_state() -> None:
    weight = np.array([[1.0, 2.0, 4.0, 8.0]])
    state = np.array([[1.0], [1.0], [1.0]])
    out, states = gdn.causal_conv(np.array([[1.0], [0.0]]), weight, state)
    assert out[:, 0] == pytest.approx([dense.silu(np.array(15.0)), dense.silu(np.array(7.0))])
    assert states[0].reshape(-1).tolist() == [1.0, 1.0, 1.0]
    assert states[1].reshape(-1).tolist() == [1.0, 1.0, 0.0]


def test_l2_norm_epsilon_is_inside_the_root() -> None:
    assert gdn.l2_norm(np.array([3.0, 4.0])) == pytest.approx([0.6, 0.8], rel=1e-7)
    assert gdn.l2_norm(np.array([1e-3, 0.0]))[0] == pytest.approx(1e-3 / math.sqrt(2e-6))


def test_softplus_is_linear_above_20() -> None:
    assert gdn.softplus(np.array([0.0, 20.5])).tolist() == [math.log(2.0), 20.5]


def test_gates() -> None:
    decay, beta = gdn.gates(np.array([[0.0]]), np.array([[0.0]]), np.array([math.log(2.0)]), np.array([0.0]))
    assert decay.item() == pytest.approx(-2 * math.log(2.0))
    assert beta.item() == 0.5


def test_one_step_decays_before_it_reads() -> None:
    """dk = dv = 1: state 8, decay 1/2 -> 4; read 4; d = 0.5 (10 - 4) = 3; state 7; out = 7 (q, k normalise to 1)."""
    one = np.full((1, 1, 1), 1e6)
    out, states = gdn.recurrence(
        one, one, np.full((1, 1, 1), 10.0), np.array([[math.log(0.5)]]), np.array([[0.5]]), np.full((1, 1, 1), 8.0)
    )
    assert states.item() == pytest.approx(7.0)
    assert out.item() == pytest.approx(7.0)


def test_state_is_value_major_and_query_is_scaled() -> None:
    """dk = 2, dv = 1: k along axis 1 writes only column 1; q along both reads it with 1/sqrt(2) * 1/sqrt(2)."""
    out, states = gdn.recurrence(
        np.full((1, 1, 2), 1e6),
        np.array([[[0.0, 1e6]]]),
        np.full((1, 1, 1), 4.0),
        np.zeros((1, 1)),
        np.ones((1, 1)),
        np.zeros((1, 1, 2)),
    )
    assert states[0, 0, 0] == pytest.approx([0.0, 4.0])
    assert out.item() == pytest.approx(2.0)


def test_value_head_uses_key_head_by_floor() -> None:
    k = np.array([[[1e6], [-1e6]]])
    out, _ = gdn.recurrence(
        np.full((1, 2, 1), 1e6), k, np.ones((1, 4, 1)), np.zeros((1, 4)), np.ones((1, 4)), np.zeros((4, 1, 1))
    )
    assert out.reshape(-1) == pytest.approx([1.0, 1.0, -1.0, -1.0])


def test_norm_comes_before_the_gate() -> None:
    out = gdn.gated_rms_norm(np.array([[2.0]]), np.array([[1.0]]), np.array([3.0]), 0.0)
    assert out.item() == pytest.approx(3.0 / (1 + math.exp(-1.0)))
