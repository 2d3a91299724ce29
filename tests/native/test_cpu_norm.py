"""RMSNorm and SwiGLU on the CPU: against fp64, bits on every path, tails that no vector divides, what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

from engine.ops import functional
from tests.native.cpu_paths import assert_same_bits, same_on_every_path

WIDTHS = [1, 2, 15, 16, 17, 31, 33, 576, 1000]
ULP = 2.0**-23


@pytest.mark.parametrize("h", WIDTHS)
def test_rms_norm_against_fp64_on_every_path(h: int) -> None:
    x, weight = torch.randn(4, h) * 5, torch.randn(h)
    (out,) = same_on_every_path(lambda: (functional.rms_norm(x, weight, 1e-5),))
    wide = x.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    # The sum of squares takes h / 16 + 4 roundings to nearest, halved by the square root; eight more follow.
    assert ((out.double() - exact).abs() <= (h / 64 + 6) * ULP * exact.abs()).all()


def test_rms_norm_keeps_to_its_rows_and_columns() -> None:
    wide = torch.full((5, 60), float("nan"))
    wide[:, 4:41] = torch.randn(5, 37)
    x, weight, out = wide[:, 4:41], torch.randn(37), torch.full((5, 50), float("nan"))
    functional.rms_norm(x, weight, 1e-6, out=out[:, 2:39])
    assert_same_bits(out[:, 2:39], functional.rms_norm(x.contiguous(), weight, 1e-6), "strided rows")
    assert out[:, :2].isnan().all()
    assert out[:, 39:].isnan().all()
    in_place = x.contiguous()
    assert_same_bits(functional.rms_norm(in_place, weight, 1e-6, out=in_place), out[:, 2:39], "in place")


@pytest.mark.parametrize("i", WIDTHS)
def test_silu_mul_against_fp64_on_every_path(i: int) -> None:
    gate_up = torch.randn(3, 2 * i) * 20
    (out,) = same_on_every_path(lambda: (functional.silu_mul(gate_up),))
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate * torch.sigmoid(gate) * up
    # exp within 2 units, then a sum, a quotient and a product, each half a unit of its own result.
    assert ((out.double() - exact).abs() <= 5 * ULP * exact.abs() + 1e-37 * up.abs()).all()


def test_silu_mul_at_the_ends_of_exp() -> None:
    gate = torch.tensor([[-3e38, -200.0, -89.0, -87.0, 0.0, 88.0, 3e38, float("inf"), float("nan")]])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    (out,) = same_on_every_path(lambda: (functional.silu_mul(gate_up),))
    assert out[0, :3].tolist() == [0.0, 0.0, 0.0]  # exp(89) and more is infinity
    # exp within two units of the last place, then a sum, a division and a product: five roundings.
    assert out[0, 3] == pytest.approx(-87 * math.exp(-87), rel=5 * 2.0**-23)
    assert out[0, 4:8].tolist() == [0.0, 88.0, gate[0, 6], math.inf]
    assert out[0, 8].isnan()


def test_no_rows() -> None:
    assert functional.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)
    assert functional.silu_mul(torch.empty(0, 8)).shape == (0, 4)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("x: saw shape (2, 0)", lambda: functional.rms_norm(torch.zeros(2, 0), torch.zeros(0), 1e-5)),
    ("weight: saw shape (9,), need [8]", lambda: functional.rms_norm(torch.zeros(2, 8), torch.zeros(9), 1e-5)),
    ("eps: saw 0.0, need", lambda: functional.rms_norm(torch.zeros(2, 8), torch.zeros(8), 0.0)),
    ("eps: saw nan, need", lambda: functional.rms_norm(torch.zeros(2, 8), torch.zeros(8), float("nan"))),
    ("x: saw shape (8,), need [any, any]", lambda: functional.rms_norm(torch.zeros(8), torch.zeros(8), 1e-5)),
    ("gate_up: saw 7 columns, need an even number", lambda: functional.silu_mul(torch.zeros(2, 7))),
    ("out: saw shape (2, 8), need [2, 4]", lambda: functional.silu_mul(torch.zeros(2, 8), out=torch.zeros(2, 8))),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
