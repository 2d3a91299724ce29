"""A quarter turn maps (a, b) to (-b, a): no arithmetic left to trust."""

from __future__ import annotations

import numpy as np
import pytest

from suites.oracles import rope

# position 0: no turn; position 1: pair 0 a quarter turn, pair 1 half a turn
TABLE = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]])
HEAD = np.array([[[1.0, 2.0, 3.0, 4.0]]])


def test_interleaved_pairs_are_neighbours() -> None:
    out = rope.rotate(HEAD, TABLE, np.array([1]), interleaved=True)
    assert out.tolist() == [[[-2.0, 1.0, -3.0, -4.0]]]


def test_neox_pairs_are_half_a_head_apart() -> None:
    out = rope.rotate(HEAD, TABLE, np.array([1]), interleaved=False)
    assert out.tolist() == [[[-3.0, -2.0, 1.0, -4.0]]]


def test_position_selects_the_row() -> None:
    both = np.concatenate([HEAD, HEAD])
    out = rope.rotate(both, TABLE, np.array([0, 1]), interleaved=True)
    assert out[0].tolist() == HEAD[0].tolist()
    assert out[1].tolist() == [[-2.0, 1.0, -3.0, -4.0]]


@pytest.mark.parametrize("interleaved", [True, False])
def test_partial_rotary_passes_the_tail_through(interleaved: bool) -> None:
    head = np.arange(1.0, 7.0).reshape(1, 1, 6)
    out = rope.rotate(head, TABLE, np.array([1]), interleaved=interleaved)
    assert out[0, 0, 4:].tolist() == [5.0, 6.0]
    assert rope.rotate_magnitude(head, TABLE, np.array([1]), interleaved=interleaved)[0, 0, 4:].tolist() == [0.0, 0.0]


def test_magnitude_adds_where_the_rotation_cancels() -> None:
    table = np.array([[[0.5, 0.5]]])
    head = np.array([[[4.0, 4.0]]])
    assert rope.rotate(head, table, np.array([0]), interleaved=True).tolist() == [[[0.0, 4.0]]]
    assert rope.rotate_magnitude(head, table, np.array([0]), interleaved=True).tolist() == [[[4.0, 4.0]]]


def test_split_qkv() -> None:
    q, k, v = rope.split_qkv(np.arange(8.0).reshape(1, 8), 2, 1, 2)
    assert (q.tolist(), k.tolist(), v.tolist()) == ([[[0, 1], [2, 3]]], [[[4, 5]]], [[[6, 7]]])


def test_store_writes_slots_and_skips_padding() -> None:
    cache = np.full((2, 3, 1, 1), -9.0)
    out = rope.store(cache, np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1), np.array([4, -1, 0]))
    assert out.reshape(-1).tolist() == [3.0, -9.0, -9.0, -9.0, 1.0, -9.0]
    assert (cache == -9.0).all()


@pytest.mark.parametrize("slot", [-2, 6])
def test_store_refuses_a_slot_outside(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot}"):
        rope.store(np.zeros((2, 3, 1, 1)), np.zeros((1, 1, 1)), np.array([slot]))
