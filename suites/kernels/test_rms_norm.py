"""RMSNorm against fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import accuracy, inputs
from suites.oracles import dense, judge, tolerance
from suites.recording import Record
from suites.targets import Target, f64

pytestmark = pytest.mark.group("rms_norm")

EPS = 1e-5
SHAPES = [(1, 576), (8, 576), (64, 576), (3, 1), (5, 7), (5, 33), (17, 1000), (4, 5120), (1, 15), (6, 17)]


def _check(
    target: Target, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, what: str, record: Record | None = None
) -> None:
    expected = dense.rms_norm(f64(x), f64(weight), EPS)
    functional.rms_norm(x, weight, EPS, out=out)
    limit = tolerance.rms_norm(expected, x.shape[1], target.arithmetic)
    judge.assert_within(f64(out), expected, limit, f"{target.name} {what}")
    if record is not None:
        accuracy.record_share(record, target, f64(out), expected, limit)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_against_fp64(targets: tuple[Target, ...], record: Record, rows: int, width: int) -> None:
    rng = inputs.generator(rows, width)
    x, weight = inputs.normal(rng, rows, width), inputs.normal(rng, width)
    for target in targets:
        scale = target.put(weight, torch.float32)
        _check(target, target.put(x), scale, target.unwritten(rows, width), "rms_norm", record)


@pytest.mark.parametrize("sigma", [1e-3, 1e-1, 30.0])
def test_scale_of_the_input(targets: tuple[Target, ...], sigma: float) -> None:
    """At 1e-3 the epsilon weighs as much as the data; at 30 it weighs nothing."""
    rng = inputs.generator(round(sigma * 1000))
    x, weight = inputs.normal(rng, 3, 576, sigma=sigma), inputs.normal(rng, 576)
    for target in targets:
        _check(target, target.put(x), target.put(weight, torch.float32), target.unwritten(3, 576), f"sigma {sigma}")


def test_zero_rows_stay_zero(targets: tuple[Target, ...]) -> None:
    for target in targets:
        out = functional.rms_norm(
            target.put(np.zeros((2, 576))), target.put(np.ones(576), torch.float32), EPS, out=target.unwritten(2, 576)
        )
        assert not out.any()


def test_strided_rows(targets: tuple[Target, ...]) -> None:
    rng = inputs.generator(1)
    x, weight = inputs.normal(rng, 5, 576), inputs.normal(rng, 576)
    for target in targets:
        rows = inputs.strided_rows(target.put(x))
        _check(target, rows, target.put(weight, torch.float32), target.unwritten(5, 576), "strided rows")


def test_in_place_gives_the_same_bits(targets: tuple[Target, ...]) -> None:
    rng = inputs.generator(2)
    x, weight = inputs.normal(rng, 5, 576), inputs.normal(rng, 576)
    for target in targets:
        rows, scale = target.put(x), target.put(weight, torch.float32)
        apart = functional.rms_norm(rows, scale, EPS, out=target.unwritten(5, 576))
        functional.rms_norm(rows, scale, EPS, out=rows)
        judge.assert_bits_equal(rows.cpu().numpy(), apart.cpu().numpy(), f"{target.name} in place")


@pytest.mark.parametrize(
    ("x", "weight", "eps", "said"),
    [
        (torch.zeros(2, 8, dtype=torch.float64), torch.zeros(8), EPS, "float64"),
        (torch.zeros(2, 8), torch.zeros(8, dtype=torch.float16), EPS, "float16"),
        (torch.zeros(2, 8), torch.zeros(7), EPS, "7"),
        (torch.zeros(8), torch.zeros(8), EPS, "8"),
        (torch.zeros(8, 2).T, torch.zeros(8), EPS, "stride"),
        (torch.zeros(2, 8), torch.zeros(8), 0.0, "eps"),
        (torch.zeros(2, 8), torch.zeros(8), float("nan"), "eps"),
    ],
    ids=["x-float64", "weight-float16", "weight-short", "x-1d", "x-columns-strided", "eps-zero", "eps-nan"],
)
def test_wrong_input_is_named(
    native_library: str, x: torch.Tensor, weight: torch.Tensor, eps: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        functional.rms_norm(x, weight, eps)
