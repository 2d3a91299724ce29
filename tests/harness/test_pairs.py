"""Ratios of matched rounds, the A/A control inside ABBA, and the doubts that travel with a verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from harness.model import Pairing, Samples
from harness.pairs import (
    control_log_ratios,
    control_spread,
    drift,
    judge_pairs,
    later_over_earlier,
    log_ratios,
    matched_log_ratio,
    outliers,
    steadiness,
)

PAIRING = Pairing("s", 0.05, 24, 0.01, "floor")


def side(*repeats: list[float]) -> Samples:
    means = tuple(sum(repeat) / len(repeat) for repeat in repeats)
    return Samples("n", "round", means, "ms", rounds=tuple(map(tuple, repeats)), pairing=PAIRING)


def test_a_stall_in_a_third_of_the_rounds_moves_nothing() -> None:
    base = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    head = [value * 1.02 for value in base]
    head[1] *= 9
    head[4] *= 9
    assert math.exp(matched_log_ratio(base, head)) == pytest.approx(1.02)


def test_rounds_are_matched_only_where_both_sides_have_as_many() -> None:
    base, head = side([1.0, 3.0], [1.0, 3.0]), side([1.1, 3.3], [1.2, 3.6])
    assert [math.exp(value) for value in log_ratios(base, head)] == pytest.approx([1.1, 1.2])
    fewer = side([2.2], [2.4])
    assert [math.exp(value) for value in log_ratios(base, fewer)] == pytest.approx([1.1, 1.2])


def test_the_control_is_neighbours_of_one_build() -> None:
    """Order A1 B1 B2 A2 A3 B3: B2 over B1, then A3 over A2."""
    base, head = side([1.0], [2.0], [3.0]), side([10.0], [11.0], [12.0])
    assert [math.exp(value) for value in control_log_ratios(base, head)] == pytest.approx([1.1, 1.5])
    assert control_spread([], 3) == control_spread([0.1], 0) == 0.0


@pytest.mark.parametrize("pairs", [1, 9, 24])
def test_the_control_s_spread_is_the_standard_error_of_a_median(pairs: int) -> None:
    """Of pairs that are normal with 1 %: sigma times sqrt(pi / 2 / n), by the quantiles of that law themselves."""
    normal = [NormalDist(0, 0.01).inv_cdf((place + 0.5) / 2001) for place in range(2001)]
    error = 0.01 * math.sqrt(math.pi / 2 / pairs)
    assert math.log1p(control_spread(normal, pairs)) == pytest.approx(error, rel=1e-3)
    # Of two the smaller counts, whatever the sign.
    assert control_spread([-0.5, 0.01], pairs) == control_spread([0.01], pairs) == control_spread([-0.01], pairs)


def test_a_session_that_ran_controls_is_held_to_them() -> None:
    base, head = side([1.0], [2.0]), side([10.0], [11.0])
    told = replace(head, pairing=replace(PAIRING, control=(0.01, -0.02)))
    assert control_log_ratios(base, told) == [0.01, -0.02]
    # Turns that ran no control pair yet have none: neighbours minutes apart say nothing about them.
    assert control_log_ratios(base, replace(head, pairing=replace(PAIRING, control=()))) == []
    assert later_over_earlier(side([1.0, 2.0]), side([1.1, 2.2])) == pytest.approx(math.log(1.1))
    assert later_over_earlier(side([1.0, 2.0]), side([1.1])) == pytest.approx(math.log(1.1 / 1.5))


def test_a_verdict_points_at_outliers_and_keeps_them() -> None:
    base = side(*[[1.0]] * 8)
    head = side(*[[1.0 + 0.001 * i] for i in range(7)], [1.4])
    judged = judge_pairs(base, head, 0.05, 24)
    assert judged.pairs == 8
    assert any("far from the others, and kept: pair 8 (+40.0 %)" in note for note in judged.notes)
    assert judged.interval is not None
    assert judged.interval.high == pytest.approx(1.4)


def test_far_is_five_deviations_from_the_median() -> None:
    """Of -2, -1, 0, 1, 2 and one more, in units of their median deviation."""
    steady = [-2.0, -1.0, 0.0, 1.0, 2.0, 0.0, 1.0, -1.0]
    assert outliers([*steady, 4.9]) == []
    assert outliers([*steady, 5.1]) == outliers([*steady, -5.1]) == [9]
    assert outliers(steady[:3]) == []


def test_before_the_first_look_there_is_no_interval() -> None:
    judged = judge_pairs(side([1.0], [1.0]), side([2.0], [2.0]), 0.05, 24)
    assert judged.interval is None
    assert judged.ratio == pytest.approx(2.0)


def test_drift_is_said_only_where_both_sides_moved() -> None:
    warming = side([1.2], [1.2], [1.0], [1.0])
    steady = side([1.0], [1.0], [1.0], [1.0])
    assert drift(warming) == pytest.approx(1 / 1.2)
    assert drift(side([1.0])) == 1.0
    assert steadiness(warming, steady) == steadiness(steady, warming) == ()
    cooling = side([1.0], [1.0], [1.2], [1.2])
    assert steadiness(cooling, steady) == steadiness(warming, cooling) == ()
    (said,) = steadiness(warming, warming)
    assert "base -16.7 %, head -16.7 %" in said
