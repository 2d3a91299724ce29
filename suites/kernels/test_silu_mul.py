"""SwiGLU against fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import accuracy, inputs
from suites.oracles import dense, judge, tolerance
from suites.recording import Record
from suites.targets import Target, array, f64

pytestmark = pytest.mark.group("silu_mul")


def _check(target: Target, gate_up: torch.Tensor, what: str, record: Record | None = None) -> None:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = functional.silu_mul(gate_up, out=target.unwritten(rows, width))
    expected = dense.silu_mul(f64(gate_up))
    limit = tolerance.silu_mul(expected, f64(gate_up), target.arithmetic)
    judge.assert_within(f64(out), expected, limit, f"{target.name} {what}")
    if record is not None:
        accuracy.record_share(record, target, f64(out), expected, limit)


@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (8, 1536), (64, 1536), (3, 1), (5, 17), (2, 33), (7, 1000)])
def test_against_fp64(targets: tuple[Target, ...], record: Record, rows: int, width: int) -> None:
    gate_up = inputs.normal(inputs.generator(rows, width), rows, 2 * width, sigma=3.0)
    for target in targets:
        _check(target, target.put(gate_up), "silu_mul", record)


def test_every_scale_of_the_gate(targets: tuple[Target, ...]) -> None:
    """From where exp overflows to where the sigmoid is 1, over signs and tiny values."""
    gate = np.concatenate([np.linspace(-110, 110, 2201), [0.0, -0.0, 1e-7, -1e-7, 6e-5, -6e-5]]).astype(np.float32)
    gate = gate.astype(np.float16).astype(np.float32)
    up = np.where(np.arange(gate.size) % 2, 1.5, -0.75).astype(np.float32)
    for target in targets:
        _check(target, target.put(np.concatenate([gate, up])[None]), "gate sweep")


def test_strided_rows(targets: tuple[Target, ...]) -> None:
    gate_up = inputs.normal(inputs.generator(3), 5, 66)
    for target in targets:
        _check(target, inputs.strided_rows(target.put(gate_up)), "strided rows")


def test_no_neighbour_leaks(targets: tuple[Target, ...]) -> None:
    """A NaN in one gate makes exactly one NaN."""
    gate_up = inputs.normal(inputs.generator(4), 3, 2 * 37)
    gate_up[1, 20] = np.nan
    for target in targets:
        out = array(functional.silu_mul(target.put(gate_up)))
        assert np.argwhere(np.isnan(out)).tolist() == [[1, 20]], target.name


@pytest.mark.parametrize(
    ("gate_up", "said"),
    [
        (torch.zeros(2, 7), "7"),
        (torch.zeros(8), "8"),
        (torch.zeros(2, 8, dtype=torch.float64), "float64"),
        (torch.zeros(8, 2).T, "stride"),
    ],
    ids=["odd-width", "1d", "float64", "columns-strided"],
)
def test_wrong_input_is_named(native_library: str, gate_up: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        functional.silu_mul(gate_up)
