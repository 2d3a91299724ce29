from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from harness import stats
from harness.model import Better
from harness.verdict import Interval, MetricOutcome

positive = st.floats(min_value=1e-3, max_value=1e3)


def test_three_against_three_cannot_reach_five_percent() -> None:
    assert stats.least_p(3, 3) == pytest.approx(0.1)
    assert stats.ratio_interval([1, 2, 3], [4, 5, 6], 0.95) is None
    assert stats.needs_n(3, 0.95) == 5
    assert stats.needs_n_each(0.95) == 4


@pytest.mark.parametrize(("base_n", "head_n"), [(3, 4), (6, 3), (5, 5)])
def test_least_p_is_that_of_the_mann_whitney_test(base_n: int, head_n: int) -> None:
    base, head = list(range(base_n)), list(range(100, 100 + head_n))
    expected = scipy_stats.mannwhitneyu(base, head, method="exact").pvalue
    assert stats.least_p(base_n, head_n) == pytest.approx(expected)


@pytest.mark.parametrize(("m", "n"), list(itertools.product(range(1, 5), repeat=2)))
def test_counts_of_orderings_by_enumeration(m: int, n: int) -> None:
    counts = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), n):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    assert stats._mann_whitney_counts(m, n) == counts


def test_ordered_interval_covers_at_its_level() -> None:
    """600 made-up pairs of runs: a cover rate under its level by four standard errors would be a broken interval."""
    rng = random.Random(7)
    trials, hits, level = 600, 0, 0.0
    for _ in range(trials):
        base = [rng.lognormvariate(0, 0.1) for _ in range(6)]
        head = [1.5 * rng.lognormvariate(0, 0.1) for _ in range(4)]
        interval = stats.ordered_interval(base, head, 0.95)
        assert interval is not None
        level = interval.level
        hits += interval.low <= 1.5 <= interval.high
    assert level >= 0.95
    assert hits / trials >= level - 4 * math.sqrt(level * (1 - level) / trials)


@pytest.mark.parametrize(("base_n", "head_n"), [(4, 4), (5, 7), (8, 8), (12, 9)])
def test_the_ends_are_where_the_rank_test_stops_rejecting(base_n: int, head_n: int) -> None:
    """A factor lies in the interval exactly if head divided by it differs from base at no smaller level, says scipy."""
    rng = random.Random(base_n)
    base = [rng.lognormvariate(0, 0.1) for _ in range(base_n)]
    head = [1.2 * rng.lognormvariate(0, 0.1) for _ in range(head_n)]
    interval = stats.ordered_interval(base, head, 0.95)
    assert interval is not None
    assert interval.level >= 0.95
    for end, outwards in ((interval.low, 1 / 1.000001), (interval.high, 1.000001)):
        beyond, within = (
            float(scipy_stats.mannwhitneyu(base, [value / factor for value in head], method="exact").pvalue)
            for factor in (end * outwards, end / outwards)
        )
        assert beyond == pytest.approx(1 - interval.level)
        assert within > 0.05


def test_the_bootstrap_is_of_medians_at_its_level() -> None:
    """Head over a constant: its median's law is counted exactly, P(median <= j-th of n) = P(Bin(n, j / n) > n / 2)."""
    n, level = 401, 0.95
    head = [1.0 + place / n for place in range(n)]
    interval = stats.bootstrap_interval([1.0] * n, head, level)
    below = [float(scipy_stats.binom.sf(n // 2, n, (place + 1) / n)) for place in range(n)]
    ends = [next(place for place in range(n) if below[place] >= p) for p in ((1 - level) / 2, (1 + level) / 2)]
    # 10,000 draws place a tail of 2.5 % within 0.16 % (one sigma), about a quarter of a place here.
    assert interval.low == pytest.approx(head[ends[0]], abs=1.5 / n)
    assert interval.high == pytest.approx(head[ends[1]], abs=1.5 / n)


def test_few_repeats_on_one_side_are_counted_not_bootstrapped() -> None:
    many, few = [1.0 + i / 100 for i in range(25)], [1.0, 1.1, 1.2, 1.3]
    for base, head in ((many, few), (few, many)):
        interval = stats.ratio_interval(base, head, 0.95)
        assert interval is not None
        assert interval.method.endswith("exact")


def test_many_repeats_are_bootstrapped_the_same_each_time() -> None:
    rng = random.Random(1)
    base = [rng.gauss(10, 0.2) for _ in range(30)]
    head = [rng.gauss(11, 0.2) for _ in range(25)]
    interval = stats.ratio_interval(base, head, 0.95)
    assert interval is not None
    assert "bootstrap" in interval.method
    assert interval == stats.ratio_interval(base, head, 0.95)
    assert interval.low < 1.1 < interval.high
    assert interval.low > 1.07


@given(st.lists(positive, min_size=4, max_size=9), st.lists(positive, min_size=4, max_size=9), positive)
def test_interval_moves_with_the_unit(base: list[float], head: list[float], factor: float) -> None:
    plain = stats.ratio_interval(base, head, 0.95)
    scaled = stats.ratio_interval([factor * x for x in base], [factor * x for x in head], 0.95)
    assert plain is not None
    assert scaled is not None
    assert plain.low <= plain.high
    assert scaled.low == pytest.approx(plain.low, rel=1e-9)
    assert scaled.high == pytest.approx(plain.high, rel=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "better", "outcome"),
    [
        (1.05, 1.10, Better.LOWER, MetricOutcome.WORSE),
        (1.05, 1.10, Better.HIGHER, MetricOutcome.BETTER),
        (1.05, 1.10, Better.NEITHER, MetricOutcome.CHANGED),
        (0.90, 0.95, Better.LOWER, MetricOutcome.BETTER),
        (0.90, 0.95, Better.HIGHER, MetricOutcome.WORSE),
        (0.99, 1.02, Better.LOWER, MetricOutcome.SAME),
        (0.99, 1.05, Better.LOWER, MetricOutcome.UNDECIDED),
        (1.02, 1.05, Better.LOWER, MetricOutcome.UNDECIDED),
        (1.0301, 1.05, Better.LOWER, MetricOutcome.WORSE),
        # The margin is a factor both ways: 1 / 1.03 is 0.9709.
        (0.95, 0.9705, Better.LOWER, MetricOutcome.BETTER),
        (0.9705, 1.0, Better.LOWER, MetricOutcome.UNDECIDED),
    ],
)
def test_three_way_decision(low: float, high: float, better: Better, outcome: MetricOutcome) -> None:
    assert stats.decide(Interval(low, high, 0.95, ""), 0.03, better) is outcome


def test_repeats_to_decide() -> None:
    assert stats.repeats_to_decide(Interval(0.97, 1.05, 0.95, ""), 0.03, 4) > 4
    on_the_edge = Interval(1.03 / 1.02, 1.03 * 1.02, 0.95, "")
    assert stats.repeats_to_decide(on_the_edge, 0.03, 4) == 0
    # Half width 0.057, 0.03 from the edge: 1.9 times as narrow takes 3.61 times as many.
    interval = Interval(math.exp(-0.057), math.exp(0.057), 0.95, "")
    assert stats.repeats_to_decide(interval, math.expm1(0.03), 4) == 15
