"""The bounds hold for real fp32 arithmetic in several orders, and are not so wide that a lost term would pass."""

from __future__ import annotations

import numpy as np
import pytest

from suites.oracles import attention, dense, gdn, judge, tolerance


def test_gamma() -> None:
    assert tolerance.gamma(4, 2.0**-24) == pytest.approx(4 * 2.0**-24, rel=1e-6)
    with pytest.raises(ValueError, match="no correct digit"):
        tolerance.gamma(2, 0.5)


@pytest.mark.parametrize("order", ["forward", "backward", "lanes"])
def test_dot_bound_holds_for_every_order(order: str) -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.normal(size=(1, 576)).astype(np.float32), rng.normal(size=(40, 576)).astype(np.float32)
    products = (x * weight).astype(np.float32)
    if order == "lanes":
        products = products.reshape(40, 36, 16).transpose(0, 2, 1).reshape(40, 576)
    elif order == "backward":
        products = products[:, ::-1]
    total = np.zeros(40, dtype=np.float32)
    for k in range(576):
        total += products[:, k]
    value = dense.linear(x.astype(float), weight.astype(float))
    limit = tolerance.dot(value, dense.linear_magnitude(x.astype(float), weight.astype(float)), 576)
    judge.assert_within(total[None].astype(float), value, limit, order)


def test_dot_bound_sees_one_lost_term() -> None:
    x = np.ones((1, 576))
    limit = tolerance.dot(np.array([[576.0]]), dense.linear_magnitude(x, x), 576)
    with pytest.raises(AssertionError, match=r"off by 1.000e\+00"):
        judge.assert_within(np.array([[575.0]]), np.array([[576.0]]), limit, "lost term")


def test_fixed_point_allows_half_a_step_of_each_input_and_no_more() -> None:
    """Largest input 1.5 of a group: step 2**-14, so 0.7 may become 0.7 +- 2**-15 (the bound says 1.5 * 2**-15)."""
    x = np.full((1, 64), 0.7)
    x[0, 0], x[0, 32] = 1.5, 0.75
    weight = np.ones((1, 64))
    value = dense.linear(x, weight)
    limit = tolerance.fixed_point(tolerance.exact(value), x, weight)
    assert limit.limit[0, 0] == pytest.approx(32 * (1.5 + 0.75) * 2.0**-15)
    held = np.concatenate([np.rint(x[0, :32] * 2**14) / 2**14, np.rint(x[0, 32:] * 2**15) / 2**15])
    judge.assert_within(dense.linear(held[None], weight), value, limit, "fixed point")
    assert float(tolerance.fixed_point(tolerance.exact(value), 0 * x, weight).limit[0, 0]) < 1e-30


def test_logit_gap_of_one_product() -> None:
    """Step 2**-14 of the largest, sqrt(32/12) of that in units of the root mean square, on both sides of the gap."""
    assert tolerance.logit_gap(10.0, 1) == pytest.approx(20 * 2.0**-14 * (32 / 12) ** 0.5)
    assert tolerance.logit_gap(10.0, 121) == pytest.approx(11 * tolerance.logit_gap(10.0, 1))


def test_attention_bound_sees_one_extra_key_and_holds_for_fp32() -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(1, 300, 1, 64)).astype(np.float32) for _ in range(3))
    table, lens, start = np.array([[0]]), np.array([299]), np.array([0, 1])
    expected = attention.paged_attention(
        q[0, :1].astype(float), k.astype(float), v.astype(float), table, lens, start, scale=0.125
    )
    limit = tolerance.attention(expected, 64)
    scores = (k[0, :299, 0] @ q[0, 0, 0]) * np.float32(0.125)
    weights = np.exp(scores - scores.max())
    single = (weights @ v[0, :299, 0]) / weights.sum()
    judge.assert_within(single[None, None].astype(float), expected.out, limit, "fp32")
    one_more = attention.paged_attention(
        q[0, :1].astype(float), k.astype(float), v.astype(float), table, lens + 1, start, scale=0.125
    )
    with pytest.raises(AssertionError, match="out of bound"):
        judge.assert_within(one_more.out, expected.out, limit, "extra key")


def test_attention_bound_refuses_to_say_nothing() -> None:
    one, keys, huge = np.ones((1, 1, 1)), np.ones((1, 1)), np.full((1, 1), 1e9)
    with pytest.raises(ValueError, match="too large"):
        tolerance.attention(attention.Attended(one, one, one, huge, huge, keys), 64)


def test_half_weights_round_to_eleven_bits_and_to_a_floor() -> None:
    ones, flat = np.ones((1, 1, 1)), np.ones((1, 1))
    attended = attention.Attended(ones, ones, 1000 * ones, flat, flat, flat)
    single, half = (tolerance.attention(attended, 64, half_weights=on).limit.item() for on in (False, True))
    assert half - single == pytest.approx(2 * 2.0**-11 + 1000 * 2.0**-25, rel=0.01)


def test_rotate_limit_is_exact_where_nothing_turns() -> None:
    limit = tolerance.rotate(np.array([1.0, 2.0]), np.array([0.0, 2.0])).limit
    assert limit[0] == 0
    assert 0 < limit[1] < 1e-6


def test_silu_lets_a_lost_sigmoid_be_zero_and_nothing_else() -> None:
    gate_up = np.array([[-95.0, -5.0, 2.0, 2.0]])
    value = dense.silu_mul(gate_up)
    limit = tolerance.silu_mul(value, gate_up).limit
    assert abs(value[0, 0]) <= limit[0, 0]
    assert abs(value[0, 1]) > 1e4 * limit[0, 1]


def test_fp16_storage_widens_to_half_an_ulp() -> None:
    value = np.array([1.0])
    assert tolerance.rms_norm(value, 16, tolerance.MMA_STORED_FP16).limit[0] == pytest.approx(2.0**-11, rel=0.01)


def test_cast_adds_one_rounding() -> None:
    out = tolerance.cast(tolerance.exact(np.array([2.0])), np.array([2.0]), 2.0**-11, 2.0**-25)
    assert out.limit[0] == pytest.approx(2.0**-10, rel=1e-3)


def test_delta_rule_bound_holds_in_fp32_and_sees_a_late_decay() -> None:
    """The recurrence in float32 stays inside; decaying after the read does not."""
    rng = np.random.default_rng(5)
    tokens, dim = 40, 32
    q, k, v = (rng.normal(size=(tokens, 1, dim)) for _ in range(3))
    decay, beta = -rng.uniform(0.01, 0.5, size=(tokens, 1)), rng.uniform(0.1, 0.9, size=(tokens, 1))
    initial = rng.normal(size=(1, dim, dim))
    out, states = gdn.recurrence(q, k, v, decay, beta, initial)
    out_limit, state_limit = tolerance.delta_rule(out, states, initial, v, dim)
    for late in (False, True):
        state = initial[0].astype(np.float32)
        unit_k, unit_q = gdn.l2_norm(k).astype(np.float32), (gdn.l2_norm(q) * dim**-0.5).astype(np.float32)
        single = np.zeros((tokens, 1, dim), dtype=np.float32)
        for t in range(tokens):
            alpha = np.float32(np.exp(decay[t, 0]))
            if not late:
                state = alpha * state
            delta = np.float32(beta[t, 0]) * (v[t, 0].astype(np.float32) - state @ unit_k[t, 0])
            state = (alpha * state if late else state) + np.outer(delta, unit_k[t, 0])
            single[t, 0] = state @ unit_q[t, 0]
        if late:
            with pytest.raises(AssertionError, match="out of bound"):
                judge.assert_within(single.astype(float), out, out_limit, "late decay")
        else:
            judge.assert_within(single.astype(float), out, out_limit, "fp32")
            judge.assert_within(state.astype(float)[None], states[-1], _last(state_limit), "state")


def _last(limit: tolerance.Tolerance) -> tolerance.Tolerance:
    return tolerance.Tolerance(limit.limit[-1], limit.source)
