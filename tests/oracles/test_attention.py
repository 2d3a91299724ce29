"""Masks written out by hand, and softmaxes whose weights are simple fractions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suites.oracles.attention import Attended, gather, paged_attention, visible


def _seen(position: int, kv_len: int, **mask: object) -> list[int]:
    return np.flatnonzero(visible(position, kv_len, **mask)).tolist()  # type: ignore[arg-type]


def test_causal_sees_itself_and_the_past() -> None:
    assert _seen(2, 5, causal=True) == [0, 1, 2]


def test_non_causal_sees_everything() -> None:
    assert _seen(2, 5, causal=False) == [0, 1, 2, 3, 4]


def test_left_window_is_inclusive() -> None:
    assert _seen(4, 6, causal=True, window=(2, -1)) == [2, 3, 4]
    assert _seen(4, 6, causal=True, window=(0, -1)) == [4]


def test_right_window_of_a_non_causal_mask() -> None:
    assert _seen(2, 6, causal=False, window=(1, 2)) == [1, 2, 3, 4]


def test_a_left_window_alone_is_symmetric_when_not_causal() -> None:
    assert _seen(2, 6, causal=False, window=(1, -1)) == [1, 2, 3]


def test_anchor_keeps_the_prefix_and_a_sliding_window() -> None:
    assert _seen(8, 10, causal=True, anchor_len=2, anchored_window=3) == [0, 1, 6, 7, 8]
    assert _seen(8, 10, causal=True, anchor_len=0, anchored_window=1) == [8]


def test_a_window_below_minus_one_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        visible(0, 1, causal=True, window=(-2, -1))


def test_gather_follows_the_table() -> None:
    cache = np.arange(6.0).reshape(3, 2, 1, 1)
    assert gather(cache, np.array([2, 0]), 3).reshape(-1).tolist() == [4.0, 5.0, 0.0]


def _one_sequence(q: list[float], k: list[float], v: list[float], **mask: object) -> Attended:
    """Head dimension 1, block size 2; slots past the length hold NaN."""
    length, blocks = len(k), (len(k) + 2) // 2
    k_cache = np.full((blocks, 2, 1, 1), np.nan)
    v_cache = np.full((blocks, 2, 1, 1), np.nan)
    k_cache.reshape(-1)[:length], v_cache.reshape(-1)[:length] = k, v
    return paged_attention(
        np.array(q).reshape(-1, 1, 1),
        k_cache,
        v_cache,
        np.arange(blocks)[None],
        np.array([length]),
        np.array([0, len(q)]),
        scale=1.0,
        **mask,  # type: ignore[arg-type]
    )


def test_weights_one_two_three() -> None:
    attended = _one_sequence([1.0], [0.0, math.log(2.0), math.log(3.0)], [6.0, 12.0, -6.0])
    assert attended.out.item() == pytest.approx((6 + 24 - 18) / 6)
    assert attended.spread.item() == pytest.approx((6 + 24 + 18) / 6)
    assert attended.score_magnitude.item() == pytest.approx(math.log(3.0))
    assert attended.keys.item() == 3
    assert attended.values.item() == pytest.approx(24.0)


def test_query_rows_are_the_last_positions() -> None:
    attended = _one_sequence([0.0, 0.0], [5.0, 5.0, 5.0], [3.0, 6.0, 12.0])
    assert attended.out.reshape(-1).tolist() == pytest.approx([4.5, 7.0])


def test_a_row_without_keys_is_zero() -> None:
    attended = _one_sequence([0.0], [1.0, 1.0], [3.0, 6.0], anchor_lens=np.array([0]), anchored_window=0)
    assert attended.out.item() == 0.0
    assert attended.keys.item() == 0


def test_grouped_heads_share_a_kv_head() -> None:
    v_cache = np.array([10.0, 20.0]).reshape(1, 1, 2, 1)
    attended = paged_attention(
        np.ones((1, 4, 1)),
        np.ones((1, 1, 2, 1)),
        v_cache,
        np.array([[0]]),
        np.array([1]),
        np.array([0, 1]),
        scale=0.5,
    )
    assert attended.out.reshape(-1).tolist() == [10.0, 10.0, 20.0, 20.0]


def test_two_sequences_do_not_mix() -> None:
    v_cache = np.array([1.0, 2.0, 30.0, np.nan]).reshape(2, 2, 1, 1)
    attended = paged_attention(
        np.zeros((2, 1, 1)),
        np.where(np.isnan(v_cache), np.nan, 0.0),
        v_cache,
        np.array([[1, 0], [0, 1]]),
        np.array([1, 2]),
        np.array([0, 1, 2]),
        scale=1.0,
    )
    assert attended.out.reshape(-1).tolist() == [30.0, 1.5]
