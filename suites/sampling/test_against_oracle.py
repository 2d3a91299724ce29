"""Cut rows against the exact oracle: rows that hypothesis makes, and every width with every batch size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.sampling import rows
from suites.sampling.cutting import Settings, assert_within_band, cut
from suites.targets import Target

pytestmark = pytest.mark.group("cutoffs")

F32 = rows.F32

finite = st.floats(-60, 60, width=32)
few_values = st.sampled_from([-20.0, -1.0, -0.0, 0.0, 1.0, 1.0000001, 2.0, 3.5])
half_grid = finite.map(lambda value: float(np.float16(value)))
anything = st.one_of(finite, few_values, st.just(-np.inf), st.floats(-(2.0**100), 2.0**100, width=32))
probability = st.one_of(
    st.floats(float(np.float32(1e-6)), 1.0, width=32, exclude_min=True),
    st.sampled_from([1.0, float(np.float32(0.95)), 0.5, float(np.nextafter(np.float32(1), np.float32(0)))]),
)


@st.composite
def a_row(draw: st.DrawFn) -> tuple[F32, Settings]:
    """One row with its settings; ties, masked entries and huge values are common."""
    elements = draw(st.sampled_from([finite, few_values, half_grid, anything]))
    values = draw(st.lists(elements, min_size=1, max_size=120))
    top_k = draw(st.integers(-1, len(values) + 1))
    temperature = draw(st.sampled_from([1.0, 1.0, 0.1, 0.5, 2.0, 0.0]))
    return np.array([values], dtype=np.float32), Settings((top_k,), (draw(probability),), (temperature,))


@settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=a_row())
def test_rows_that_hypothesis_makes(targets: tuple[Target, ...], case: tuple[F32, Settings]) -> None:
    logits, each = case
    for target in targets:
        assert_within_band(cut(target, logits, each), 0, logits, each, f"{target.name}: {logits.tolist()}")


@pytest.mark.parametrize("batch", rows.BATCHES)
@pytest.mark.parametrize("width", rows.WIDTHS)
def test_width_and_batch(targets: tuple[Target, ...], record: Record, width: int, batch: int) -> None:
    """Rows of every kind with mixed settings: some against the oracle, the rest against the same row elsewhere."""
    distinct = min(batch, len(rows.KINDS))
    kinds = [rows.KINDS[(batch + i) % len(rows.KINDS)] for i in range(distinct)]
    source = np.concatenate([rows.logits(kind, 1, width, seed=i) for i, kind in enumerate(kinds)])
    order = [i % distinct for i in range(batch)]
    logits, each = source[order], rows.mixed_settings(distinct, width, seed=batch).take(order)
    judged = distinct if width * distinct < 600_000 else 2
    for target in targets:
        result = cut(target, logits, each)
        only = sum(
            assert_within_band(result, index, logits, each, f"{target.name}: {kinds[index]}") for index in range(judged)
        )
        for index in range(distinct, batch):
            first = index % distinct
            assert_bits_equal(result.plan[index], result.plan[first], f"{target.name}: plan of row {index} and {first}")
            assert_bits_equal(result.logits[index], result.logits[first], f"{target.name}: row {index} and {first}")
    record.metric("rows judged by the oracle", judged, "rows", better="higher")
    record.metric("rows with one right answer", only, "rows", better="higher")
