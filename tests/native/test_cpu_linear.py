"""Linear layers on the CPU: the fixed-point bound, bits on every path and for every M, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ops import functional, reference
from engine.ops.packed import PackedQ4_1, PackedQ8_0, pack_q4_1, pack_q8_0
from native import ops
from tests.native.cpu_paths import assert_same_bits, same_on_every_path

SHAPES = [(16, 32), (1, 32), (17, 96), (40, 160), (192, 576), (33, 1536)]


def halves(values: torch.Tensor) -> torch.Tensor:
    return values.half().view(torch.uint8).view(*values.shape, 2)


def q4_1(n: int, k: int) -> PackedQ4_1:
    draw = torch.Generator().manual_seed(n)
    blocks = torch.randint(0, 256, (n, k // 32, 20), dtype=torch.uint8, generator=draw)
    scales = torch.rand(n, k // 32, generator=draw) * 0.02 + 0.001
    blocks[..., :2], blocks[..., 2:4] = halves(scales), halves(-8 * scales)
    return pack_q4_1(blocks)


def q8_0(n: int, k: int) -> PackedQ8_0:
    draw = torch.Generator().manual_seed(n)
    blocks = torch.randint(0, 256, (n, k // 32, 34), dtype=torch.uint8, generator=draw)
    blocks[..., :2] = halves(torch.rand(n, k // 32, generator=draw) * 0.02 + 0.001)
    return pack_q8_0(blocks)


def make(kind: str, n: int, k: int) -> PackedQ4_1 | PackedQ8_0:
    return q4_1(n, k) if kind == "q4_1" else q8_0(n, k)


def fixed_point_bound(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Largest possible error of every output: half a step of 2^-14 of the group's magnitude for each input, and the
    float32 sums of a group's two terms, in each of K / 32 groups."""
    m, k = x.shape
    groups = x.double().abs().view(m, k // 32, 32)
    half_step = (groups.amax(-1).log2().floor() - 15).exp2().repeat_interleave(32, dim=1)
    rounding = half_step @ weight.double().abs().T
    sums = 2.0**-24 * (2 * (k // 32) + 4) * 32 * (groups.amax(-1).repeat_interleave(32, 1) @ weight.double().abs().T)
    return rounding + sums


@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_within_the_fixed_point_bound_of_fp64_on_every_path(kind: str, n: int, k: int) -> None:
    weight = make(kind, n, k)
    x = torch.randn(9, k, generator=torch.Generator().manual_seed(n)) * 3
    (out,) = same_on_every_path(lambda: (functional.linear(x, weight),))
    dense = weight.dequantize()
    error = (out.double() - x.double() @ dense.double().T).abs()
    assert (error <= fixed_point_bound(x, dense)).all()


@pytest.mark.parametrize("kind", ["q4_1", "q8_0"])
def test_a_row_has_the_same_bits_whatever_the_batch(kind: str) -> None:
    weight = make(kind, 40, 96)
    x = torch.randn(70, 96)
    alone = torch.cat([functional.linear(x[row : row + 1], weight) for row in range(70)])
    for m in (2, 3, 4, 5, 7, 8, 9, 64, 65, 70):
        assert_same_bits(functional.linear(x[:m], weight), alone[:m], f"m = {m}")


def test_integers_of_fifteen_bits_are_exact() -> None:
    weight = q8_0(16, 64)
    weight.data[..., 512:] = halves(torch.full((1, 2, 16), 0.5)).reshape(1, 2, 32)
    x = torch.randint(-32767, 32768, (5, 64)).float()
    exact = x.double() @ weight.dequantize().double().T
    # Two groups of up to 2^28: each sum is rounded to 24 bits once, then the two are added.
    assert ((functional.linear(x, weight).double() - exact).abs() <= 3 * 2.0**4).all()
    small = torch.randint(-3, 4, (5, 64)).float()
    assert torch.equal(functional.linear(small, weight).double(), small.double() @ weight.dequantize().double().T)


def test_a_group_with_a_value_that_is_not_finite_makes_its_row_nan_alone() -> None:
    weight = q4_1(20, 64)
    x = torch.randn(3, 64)
    clean = functional.linear(x, weight)
    for bad in (float("nan"), float("inf"), -float("inf")):
        x[1, 40] = bad
        out = functional.linear(x, weight)
        assert out[1].isnan().all()
        assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-33, 1e34])
def test_extreme_magnitudes(size: float) -> None:
    weight = q8_0(16, 32)
    weight.data[..., 512:] = halves(torch.full((1, 1, 16), 2.0**-8)).reshape(1, 1, 32)
    x = torch.zeros(1, 32)
    x[0, 3] = size
    (out,) = same_on_every_path(lambda: (functional.linear(x, weight),))
    exact = x.double() @ weight.dequantize().double().T
    # Groups below 2^-112 are zero; others are exact to 2^-15 of the value.
    allowed = 2.0**-112 if size < 2.0**-112 else size * 2.0**-15
    assert ((out.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("kind", ["q4_1", "q8_0", "dense"])
def test_residual_strides_and_aliasing(kind: str) -> None:
    weight: Any = torch.randn(24, 64) if kind == "dense" else make(kind, 24, 64)
    wide = torch.randn(6, 100)
    x, residual = wide[:, 7:71], torch.randn(6, 50)[:, :24]
    plain = functional.linear(x.contiguous(), weight)
    expected = plain + residual
    out = torch.full((6, 40), float("nan"))
    functional.linear(x, weight, residual=residual, out=out[:, 3:27])
    assert_same_bits(out[:, 3:27], expected, "strided out")
    assert out[:, :3].isnan().all()
    assert out[:, 27:].isnan().all()
    in_place = residual.clone()
    assert functional.linear(x, weight, residual=in_place, out=in_place) is in_place
    assert_same_bits(in_place, expected, "residual as out")


def test_dense_against_fp64_on_every_path() -> None:
    weight, x = torch.randn(33, 70), torch.randn(5, 70)
    (out,) = same_on_every_path(lambda: (functional.linear(x, weight),))
    exact = x.double() @ weight.double().T
    bound = 70 * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    assert ((out.double() - exact).abs() <= bound).all()


def test_no_rows() -> None:
    assert functional.linear(torch.empty(0, 64), q4_1(24, 64)).shape == (0, 24)
    assert functional.linear(torch.empty(0, 64), torch.randn(24, 64)).shape == (0, 24)


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_embedding_equals_the_twin(id_dtype: torch.dtype) -> None:
    weight = q8_0(40, 96)
    ids = torch.tensor([0, 39, 16, 15, 7, 7], dtype=id_dtype)
    (out,) = same_on_every_path(lambda: (functional.embedding(ids, weight),))
    assert_same_bits(out, reference.embedding(ids, weight), "q8_0 rows")
    for table in (torch.randn(40, 33), torch.randn(40, 33).half()):
        assert_same_bits(functional.embedding(ids, table), reference.embedding(ids, table), str(table.dtype))


X, W = torch.randn(3, 64), q4_1(24, 64)
REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("x: saw dtype torch.float64, allowed torch.float32", lambda: functional.linear(X.double(), W)),
    ("x: saw shape (3, 32), need [any, 64]", lambda: functional.linear(X[:, :32], W)),
    ("x: saw strides (1, 3), the last dimension must be contiguous", lambda: functional.linear(X.T.contiguous().T, W)),
    ("residual: saw shape (3, 23), need [3, 24]", lambda: functional.linear(X, W, residual=torch.zeros(3, 23))),
    ("out: saw dtype torch.float16, allowed torch.float32", lambda: functional.linear(X, W, out=X.half()[:, :24])),
    ("an output may not be broadcast", lambda: functional.linear(X, W, out=torch.zeros(1, 24).expand(3, 24))),
    (
        "weight tiles: saw shape (2, 2, 544), need [2, any, 320]",
        lambda: functional.linear(X, PackedQ4_1(q8_0(24, 64).data, 24, 64)),
    ),
    ("Q4_1 blocks: saw torch.uint8 (4, 2, 34)", lambda: pack_q4_1(torch.zeros(4, 2, 34, dtype=torch.uint8))),
    ("Q8_0 blocks: saw torch.float32 (4, 2, 34)", lambda: pack_q8_0(torch.zeros(4, 2, 34))),
    ("saw an empty weight", lambda: pack_q4_1(torch.zeros(0, 2, 20, dtype=torch.uint8))),
    (
        "embedding: ids[1] is 40, allowed 0..39",
        lambda: functional.embedding(torch.tensor([3, 40]), q8_0(40, 32)),
    ),
    ("embedding: ids[0] is -1, allowed 0..4", lambda: functional.embedding(torch.tensor([-1]), torch.zeros(5, 8))),
    ("ids: saw dtype torch.float32", lambda: functional.embedding(torch.zeros(2), torch.zeros(5, 8))),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_bound_call_reads_its_buffers_each_time() -> None:
    x, out = torch.randn(2, 64), torch.empty(2, 24)
    call = ops.bind_linear_q4_1(x, W.data, W.n, None, out)
    for _ in range(3):
        x.copy_(torch.randn(2, 64))
        assert call() is out
        assert_same_bits(out, functional.linear(x, W), "bound call")
