"""The sampling oracle on cases worked by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from suites.oracles import sampling as oracle
from suites.oracles import sampling_rules as rules

E = math.e


def _rank(values: list[float], top_k: int = 0) -> oracle.Ranking:
    return oracle.rank(np.array(values, dtype=np.float32), top_k)


def test_order_is_value_descending_then_id_descending() -> None:
    assert _rank([1, 3, 2, 3]).ids.tolist() == [3, 1, 2, 0]


def test_top_k_keeps_every_entry_that_ties_with_the_kth() -> None:
    assert _rank([4, 3, 3, 3, 1], 2).ids.tolist() == [0, 3, 2, 1]


@pytest.mark.parametrize("top_k", [0, -1, 4, 9])
def test_top_k_off(top_k: int) -> None:
    assert len(_rank([1, 2, 3, 4], top_k).ids) == 4


def test_equality_at_the_edge_removes() -> None:
    """Eight equal entries: before the second there is exactly 1/8."""
    ranking = _rank([1] * 8)
    assert ranking.kept_ids(0.125) == {7}
    assert ranking.kept_ids(float(np.nextafter(np.float32(0.125), np.float32(1)))) == {6, 7}


def test_mass_is_that_of_the_tie_enlarged_set() -> None:
    """[4, 3, 3, 3, 1] k=2: shares e/(e+3) = 0.475, then 0.175 each; over two entries only it would be 0.731."""
    ranking = _rank([4, 3, 3, 3, 1], 2)
    assert ranking.kept_ids(0.47) == {0}
    assert ranking.kept_ids(0.48) == {0, 3}
    assert ranking.kept_ids(0.65) == {0, 3}
    assert ranking.kept_ids(0.651) == {0, 2, 3}
    probs = ranking.probabilities(0.48, 5)
    assert probs[[1, 2, 4]].tolist() == [0, 0, 0]
    assert probs[0] == pytest.approx(E / (E + 1), rel=1e-15)


def test_a_band_opens_both_ways() -> None:
    ranking = _rank([1] * 8)
    assert ranking.keep(0.5) == (4, 4)
    assert ranking.keep(0.5, Fraction(1, 100)) == (4, 5)
    assert ranking.keep(0.51, Fraction(1, 50)) == (4, 5)
    assert ranking.keep(0.44, Fraction(1, 100)) == (4, 4)


def test_edge_margin_is_the_nearest_change() -> None:
    """Shares of 1/4: at p = 0.6 three stay, the edges are 0.5 and 0.75."""
    assert _rank([1] * 4).edge_margin(0.6) == pytest.approx(0.1)
    assert _rank([1] * 4).edge_margin(0.2) == pytest.approx(0.05)
    assert _rank([1] * 4).edge_margin(1.0) == math.inf


def test_one_always_stays_and_top_p_of_one_keeps_what_weighs_nothing() -> None:
    ranking = _rank([0, -30, -110, -120])
    assert ranking.kept_ids(1e-9) == {0}
    assert ranking.kept_ids(1.0) == {0, 1, 2, 3}


def test_signed_zeros_tie_and_masked_entries_weigh_nothing() -> None:
    assert _rank([0.0, -0.0, -1, -0.0], 2).ids.tolist() == [3, 1, 0]
    ranking = _rank([-math.inf, 2, -math.inf, 2, 1], 4)
    assert ranking.kept_ids(0.9) == {1, 3, 4}
    assert ranking.probabilities(1.0, 5)[[0, 2]].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([1, math.nan, math.inf], "nan"),
        ([1, math.inf, -math.inf], "+inf"),
        ([-math.inf, -math.inf], "nothing finite"),
        ([-math.inf, 0], None),
    ],
)
def test_faults(values: list[float], seen: str | None) -> None:
    assert oracle.fault(np.array(values, dtype=np.float32)) == seen


def test_temperature_is_an_fp32_quotient() -> None:
    quotient = oracle.after_temperature(np.array([1.0], dtype=np.float32), 3.0)
    assert quotient.dtype == np.float32
    assert quotient[0] == np.float32(1) / np.float32(3)
    assert np.isposinf(oracle.after_temperature(np.array([1e38], dtype=np.float32), 0.1))[0]


def test_total_variation() -> None:
    assert oracle.total_variation(np.array([0.5, 0.5]), np.array([0.2, 0.8])) == pytest.approx(0.3)


def test_rules_by_hand() -> None:
    """Two tokens of history: 2.0 / 1.25 = 1.6, then minus 0.5 twice and 0.25 once; -1 * 1.25."""
    row = np.array([2.0, -1.0, 3.0, 0.5], dtype=np.float32)
    assert rules.ruled(row, prompt=[1], output=[0, 0], repetition=1.25, frequency=0.5, presence=0.25) == [
        1.6 - 1.0 - 0.25,
        -1.25,
        3.0,
        0.5,
    ]
    assert rules.ruled(row, bias={3: 1.5}, allowed=frozenset({0, 3}), banned=frozenset({0})) == [
        -math.inf,
        -math.inf,
        -math.inf,
        2.0,
    ]


def test_min_p_by_hand() -> None:
    """Shares of the largest: 1, 1/2, 1/4 (logits in units of log 2, rounded to fp32)."""
    row = np.array([0, -math.log(2), -2 * math.log(2)], dtype=np.float32)
    assert rules.min_p_keeps(row, 0.4, 1.0) == {0, 1}
    assert rules.min_p_keeps(row, 0.2, 1.0) == {0, 1, 2}
    assert rules.min_p_keeps(row, 0.4, 2.0) == {0, 1, 2}  # shares 1, 0.71, 0.5
    assert rules.min_p_keeps(row, 1.0, 1.0) == {0}


def test_log_softmax_by_hand() -> None:
    assert rules.log_softmax(np.array([1, 1, -math.inf], dtype=np.float32)) == pytest.approx(
        [-math.log(2), -math.log(2), -math.inf]
    )
