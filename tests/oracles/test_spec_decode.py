"""The oracles of speculative decoding on cases worked by hand and on published vectors."""

from __future__ import annotations

import numpy as np
import pytest

from suites.oracles import philox
from suites.oracles.spec_rejection import draw, judge


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The published known answers of Philox-4x32-10: all zeros, all ones, digits of pi.
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D)),
        ((0xFFFFFFFF,) * 4, 0xFFFFFFFF_FFFFFFFF, (0x408F276D, 0x41C83B0E)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0_A4093822, (0xD16CFE09, 0x94FDCCEB)),
    ],
)
def test_philox_known_answers(counter: tuple[int, int, int, int], key: int, words: tuple[int, int]) -> None:
    out = philox.blocks(counter, np.array([key, 5], dtype=np.uint64))
    assert int(out[0]) == words[0] | (words[1] << 32)
    assert out[0] != out[1]


HALF, LAST = np.array([0.5, 0.25, 0.25]), np.array([0.0, 0.0, 1.0])


@pytest.mark.parametrize(("uniform", "token"), [(0.1, 0), (0.4999, 0), (0.5, 1), (0.7, 1), (0.76, 2), (0.999, 2)])
def test_a_draw_takes_the_first_token_whose_sum_passes(uniform: float, token: int) -> None:
    assert draw(HALF, uniform)[0] == token


def test_a_draws_margin_is_the_way_to_the_next_token() -> None:
    token, margin = draw(HALF, 0.7)
    assert token == 1
    assert margin == pytest.approx(0.05)


def test_a_round_by_hand() -> None:
    """Draft 1 of probability 1/2, target 1/4: it stays below u = 1/2; else a token of (1/4, 0, 0) / (1/4) follows."""
    drafted = np.array([0.25, 0.5, 0.25])
    stays = judge([HALF, LAST], [1], [drafted], [0.49], [0.9], 0.3)
    assert stays.emitted == (1, 2)
    assert stays.margin == pytest.approx(0.005)
    goes = judge([HALF, LAST], [1], [drafted], [0.51], [0.9], 0.3)
    assert goes.emitted == (0,)


def test_where_nothing_is_left_the_target_is_drawn() -> None:
    assert judge([HALF, LAST], [0], [np.array([1.0, 0.25, 0.25])], [0.9], [0.6], 0.1).emitted == (1,)
    assert judge([HALF], [], [], [], [], 0.8).emitted == (2,)
