"""int4 and NVFP4 in the SM70 packing, FP16 weights and candidate logits on the CPU."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch

from engine.ops import functional, reference
from engine.ops.functional import PackedInt4, PackedNvfp4
from tests.native.cpu_paths import assert_same_bits, same_on_every_path
from tests.native.test_cpu_linear import fixed_point_bound

WIDTHS = [1, 24, 32, 48, 100]


def int4(n: int, k: int, group: int = 32) -> PackedInt4:
    draw = torch.Generator().manual_seed(n)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=draw)
    zeros = torch.randint(0, 16, (n, k // group), dtype=torch.uint8, generator=draw)
    scales = (torch.rand(n, k // group, generator=draw) * 0.02 + 0.001).half()
    return functional.pack_int4(codes, scales, zeros)


def nvfp4(n: int, k: int, global_scale: float = 0.037) -> PackedNvfp4:
    draw = torch.Generator().manual_seed(n)
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=draw)
    scales = torch.randint(0, 0x7F, (n, k // 16), dtype=torch.uint8, generator=draw)  # every finite E4M3 >= 0
    return functional.pack_nvfp4(packed, scales, global_scale, "multiply")


def judge(weight: PackedInt4 | PackedNvfp4, m: int) -> None:
    x = torch.randn(m, weight.k, generator=torch.Generator().manual_seed(m)) * 2
    (out,) = same_on_every_path(lambda: (functional.linear(x, weight),))
    dense = weight.dequantize()
    assert out.shape == (m, weight.n)
    assert ((out.double() - x.double() @ dense.double().T).abs() <= fixed_point_bound(x, dense)).all()


@pytest.mark.parametrize("m", [1, 8, 17])
@pytest.mark.parametrize("n", WIDTHS)
def test_int4_against_fp64_on_every_path(n: int, m: int) -> None:
    judge(int4(n, 128, group=64), m)


@pytest.mark.parametrize("m", [1, 8, 17])
@pytest.mark.parametrize("n", WIDTHS)
def test_nvfp4_against_fp64_on_every_path(n: int, m: int) -> None:
    judge(nvfp4(n, 96), m)


@pytest.mark.parametrize("make", [int4, nvfp4])
def test_one_input_reads_one_column_of_the_weight(make: Callable[[int, int], PackedInt4 | PackedNvfp4]) -> None:
    """The identity as activations: each output is one weight, exact but for its own rounding."""
    weight = make(40, 64)
    out = functional.linear(torch.eye(64), weight)
    torch.testing.assert_close(out, weight.dequantize().T, atol=0, rtol=2.0**-22)


@pytest.mark.parametrize("make", [int4, nvfp4])
def test_padded_columns_are_never_written_nor_read(make: Callable[[int, int], PackedInt4 | PackedNvfp4]) -> None:
    weight = make(24, 64)
    plain = functional.linear(torch.ones(3, 64), weight)
    poisoned = dataclasses.replace(weight, codes=weight.codes.clone())
    columns = 8 * (torch.arange(32) >> 2 & 3) + (torch.arange(32) & 3) + 4 * (torch.arange(32) >> 4)
    poisoned.codes[:, :, columns >= 24] = 0xFF
    wide = torch.full((3, 40), float("nan"))
    functional.linear(torch.ones(3, 64), poisoned, out=wide[:, 5:29])
    assert_same_bits(wide[:, 5:29], plain, "the logical columns")
    assert wide[:, :5].isnan().all()
    assert wide[:, 29:].isnan().all()


@pytest.mark.parametrize("make", [int4, nvfp4])
def test_a_row_has_the_same_bits_whatever_the_batch(make: Callable[[int, int], PackedInt4 | PackedNvfp4]) -> None:
    weight, x, residual = make(48, 64), torch.randn(70, 64), torch.randn(70, 48)
    out = functional.linear(x, weight, residual=residual)
    alone = [functional.linear(x[r : r + 1], weight, residual=residual[r : r + 1]) for r in range(70)]
    assert_same_bits(out, torch.cat(alone), "rows alone")


def test_awq_order_reaches_the_right_columns() -> None:
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (64, 16), generator=draw)
    zeros = torch.randint(0, 16, (2, 16), generator=draw)
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def words(nibbles: torch.Tensor) -> torch.Tensor:
        by_word = nibbles.view(nibbles.shape[0], -1, 8)
        total = sum(by_word[..., order[j]].long() << (4 * j) for j in range(8))
        return torch.as_tensor(total).to(torch.int32)

    scales = (torch.rand(2, 16, generator=draw) + 0.5).half()
    weight = functional.pack_awq(words(codes), words(zeros), scales)
    expected = (codes - zeros.repeat_interleave(32, dim=0)) * scales.float().repeat_interleave(32, dim=0)
    torch.testing.assert_close(functional.linear(torch.eye(64), weight), expected, atol=0, rtol=2.0**-22)


def test_half_weights_and_candidates_against_fp64_on_every_path() -> None:
    weight, x = torch.randn(500, 70).half(), torch.randn(8, 70)
    ids = torch.randint(0, 500, (8, 64))
    logits, chosen = same_on_every_path(
        lambda: (functional.dense_logits(x, weight), functional.candidate_logits(x, weight, ids))
    )
    exact = x.double() @ weight.double().T
    bound = 70 * 2.0**-24 * (x.double().abs() @ weight.double().abs().T)
    assert ((logits.double() - exact).abs() <= bound).all()
    assert_same_bits(chosen, logits.gather(1, ids), "candidates are the dense logits")
    # Roundings of either sign grow with the root of their number: of the bound's 6e-4, 70 in two sums make 8e-5.
    torch.testing.assert_close(chosen, reference.candidate_logits(x, weight, ids), atol=1e-4, rtol=0)


def test_values_that_one_half_would_hide_stay_apart() -> None:
    """Sixty-four logits that all round to one float16: 1 + i * 2^-18."""
    x = torch.zeros(1, 32)
    x[0, :2] = torch.tensor([1.0, 2.0**-12])
    weight = torch.zeros(64, 32).half()
    weight[:, 0], weight[:, 1] = 1.0, torch.arange(64) / 64
    out = functional.candidate_logits(x, weight, torch.arange(64).unsqueeze(0))
    assert out[0].tolist() == [1.0 + i * 2.0**-18 for i in range(64)]
    assert len(set(out.half()[0].tolist())) == 1


W4, X = int4(24, 64), torch.zeros(2, 64)
REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("x: saw shape (2, 32), need [any, 64]", lambda: functional.linear(torch.zeros(2, 32), W4)),
    (
        "weight.codes: saw shape (1, 2, 32, 16), need [2, 2, 32, 16]",
        lambda: functional.linear(X, dataclasses.replace(W4, n=40)),
    ),
    ("weight.group: saw 48 for k 64", lambda: functional.linear(X, dataclasses.replace(W4, group=48))),
    ("weight.params: saw shape", lambda: functional.linear(X, dataclasses.replace(W4, group=64))),
    ("weight.k: saw 40, need a positive multiple of 32", lambda: functional.linear(X, dataclasses.replace(W4, k=40))),
    (
        "weight.global_scale: saw nan",
        lambda: functional.linear(X, dataclasses.replace(nvfp4(24, 64), global_scale=float("nan"))),
    ),
    (
        "ids[1, 0] is 24, allowed 0..23",
        lambda: functional.candidate_logits(X, torch.zeros(24, 64), torch.tensor([[0], [24]])),
    ),
    (
        "ids: saw dtype torch.int32",
        lambda: functional.candidate_logits(X, torch.zeros(24, 64), torch.zeros(2, 1).int()),
    ),
    ("weight: saw dtype torch.bfloat16", lambda: functional.dense_logits(X, torch.zeros(24, 64).bfloat16())),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
