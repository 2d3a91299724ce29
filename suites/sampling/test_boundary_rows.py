"""The boundary cases that one row shows: which ids survive, by name."""

from __future__ import annotations

import numpy as np
import pytest

from suites.recording import Record
from suites.sampling.boundary_rows import FIRST_TWENTY, REST, BoundaryRow
from suites.sampling.cutting import FLAGS, Settings, assert_ids, cut
from suites.targets import Target

pytestmark = pytest.mark.group("cutoffs")


def _check(case: BoundaryRow, targets: tuple[Target, ...], record: Record) -> None:
    settings = Settings((case.top_k,), (case.top_p,), (case.temperature,))
    for target in targets:
        result = cut(target, case.row[None], settings)
        assert result.plan[0, FLAGS] == 0, f"{target.name}: an ordinary row was flagged {result.plan[0, FLAGS]}"
        assert_ids(result.ids(), case.keep, f"{target.name}: case {case.id}")
    record.metric("kept", len(case.keep), "ids")


@pytest.mark.parametrize("case", FIRST_TWENTY, ids=lambda case: case.id)
def test_ties(case: BoundaryRow, targets: tuple[Target, ...], record: Record) -> None:
    _check(case, targets, record)


@pytest.mark.parametrize("case", REST, ids=lambda case: case.id)
def test_edges(case: BoundaryRow, targets: tuple[Target, ...], record: Record) -> None:
    _check(case, targets, record)


def test_disabled_row_keeps_every_bit(targets: tuple[Target, ...]) -> None:
    """Case 21: k = V and p = 1 is no cut at all, -0 and denormals included."""
    row = np.array([[1e-45, -0.0, 0.0, -1e-40, 88, -np.inf]], dtype=np.float32)
    for target in targets:
        result = cut(target, row, Settings.same(1, top_k=6))
        assert result.logits.tobytes() == row.tobytes()
