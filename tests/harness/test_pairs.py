"""Ratios of matched rounds, the A/A control inside ABBA, and the doubts that travel with a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

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


def test_a_session_that_ran_controls_is_held_to_them() -> None:
    base, head = side([1.0], [2.0]), side([10.0], [11.0])
    told = replace(head, pairing=replace(PAIRING, control=(0.01, -0.02)))
    assert control_log_ratios(base, told) == [0.01, -0.02]
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


def test_before_the_first_look_there_is_no_interval() -> None:
    judged = judge_pairs(side([1.0], [1.0]), side([2.0], [2.0]), 0.05, 24)
    assert judged.interval is None
    assert judged.ratio == pytest.approx(2.0)


def test_drift_is_said_only_where_both_sides_moved() -> None:
    warming = side([1.2], [1.2], [1.0], [1.0])
    steady = side([1.0], [1.0], [1.0], [1.0])
    assert drift(warming) == pytest.approx(1 / 1.2)
    assert drift(side([1.0])) == 1.0
    assert steadiness(warming, steady) == ()
    (said,) = steadiness(warming, warming)
    assert "base -16.7 %, head -16.7 %" in said
