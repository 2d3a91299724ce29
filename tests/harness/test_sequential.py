"""Planned looks: the error of a plan is counted path by path here too, by brute force and by drawing."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from harness.sequential import Look, interval_at, least_spent, plan, planned_looks, share


def _missed(signs: tuple[bool, ...], looks: tuple[Look, ...]) -> bool:
    """Whether any look's interval lies wholly on one side of the median, for pairs above (True) or below it."""
    for look in looks:
        below = sum(not sign for sign in signs[: look.pairs])
        if look.cut and not look.cut <= below <= look.pairs - look.cut:
            return True
    return False


@pytest.mark.parametrize("looks", [(8, 10, 12), (4, 5, 9, 14), (12,)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_spent_is_the_share_of_all_sequences_that_miss(looks: tuple[int, ...], alpha: float) -> None:
    made = plan(looks, alpha)
    sequences = list(itertools.product((False, True), repeat=looks[-1]))
    share_missed = sum(_missed(signs, made.looks) for signs in sequences) / len(sequences)
    assert made.looks[-1].spent == pytest.approx(share_missed, abs=1e-12)
    assert share_missed <= alpha + 1e-12


def test_no_plan_spends_more_at_a_look_than_its_share() -> None:
    for alpha in (0.05, 0.025, 0.00625):
        made = plan(planned_looks(), alpha)
        for look in made.looks:
            assert look.spent <= alpha * look.pairs / made.most_pairs + 1e-9
        # One pair less left off at a look would be wasteful: the next cut overspends.
        assert made.looks[-1].cut > 0


def test_a_single_look_is_the_order_statistic_interval_of_the_textbook() -> None:
    """n = 10: the second and ninth of ten values cover the median with 97.85 %."""
    (look,) = plan((10,), 0.05).looks
    assert look.cut == 2
    assert look.spent == pytest.approx(2 * (1 + 10) / 1024)


def test_intervals_hold_over_all_looks_together() -> None:
    """Drawn with heavy tails: the true ratio is outside any interval of a session in at most alpha of them.

    4000 sessions: three standard deviations of a share of 5 % are 1.04 %.
    """
    draw, made = random.Random(5), plan(planned_looks(), 0.05)
    outside = 0
    for _ in range(4000):
        values = [draw.gauss(0, 1) / max(abs(draw.gauss(0, 1)), 0.01) for _ in range(made.most_pairs)]
        intervals = [interval_at(values, look, 0.05) for look in made.looks]
        outside += any(found is not None and not found.low <= 1 <= found.high for found in intervals)
    assert outside / 4000 <= 0.05 + 0.0104


def test_the_interval_is_of_the_pairs_up_to_the_look() -> None:
    values = [math.log(value) for value in (1.03, 1.01, 1.02, 1.04, 1.05, 1.06, 1.07, 1.08, 9.0, 9.0)]
    found = interval_at(values, Look(8, 2, 0.0), 0.05)
    assert found is not None
    assert [found.low, found.high] == pytest.approx([1.02, 1.07])
    assert interval_at(values, Look(8, 0, 0.0), 0.05) is None
    with pytest.raises(ValueError, match="3 pairs for a look after 8"):
        interval_at(values[:3], Look(8, 1, 0.0), 0.05)


@pytest.mark.parametrize("looks", [(), (4, 4), (8, 6), (0, 2)])
def test_looks_must_grow(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="growing numbers"):
        plan(looks, 0.05)


def test_three_pairs_can_never_decide() -> None:
    """The least error of three pairs is 0.25: a plan for them gives no interval."""
    assert least_spent(3) == 0.25
    assert [look.cut for look in plan((1, 2, 3), 0.05).looks] == [0, 0, 0]
    assert planned_looks(4) == (4,)
    with pytest.raises(ValueError, match="an even number"):
        planned_looks(5)


def test_shares_add_up() -> None:
    assert share(0.05, 4) * 4 == pytest.approx(0.05)
    with pytest.raises(ValueError, match="0 quantities"):
        share(0.05, 0)
