"""Four-bit products of the device code: NVFP4 at padded widths, AWQ, and the control that alignment 16 must fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from native import ops_cuda
from suites.kernels import inputs
from suites.oracles import dense, fp8, int4, judge, tolerance
from suites.oracles.arrays import F64
from suites.targets import CUDA, Target, array, f64

WIDTHS = (24, 48, 4120, 8240)
K = 512
NVFP4_GROUP = pytest.mark.group("sm70 nvfp4")
AWQ_GROUP = pytest.mark.group("sm70 int4")


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """A random checkpoint: codes ``[n, k/2]``, block scales about 0.125 ``[n, k/16]``, global scale 0.5."""

    packed: np.ndarray
    scales: np.ndarray
    global_scale: float = 0.5

    @classmethod
    def make(cls, n: int, k: int) -> Nvfp4:
        """Seeded by its shape. Every code of E2M1 occurs; scales spread over several E4M3 binades."""
        rng = inputs.generator(n, k)
        packed = rng.integers(0, 256, size=(n, k // 2), dtype=np.uint8)
        scales = fp8.encode(0.125 * 2.0 ** rng.uniform(-2, 2, size=(n, k // 16)), fp8.E4M3)
        return cls(packed, scales)

    def pack(self, target: Target, convention: Literal["multiply", "divide"] = "multiply") -> ops_cuda.PackedNvfp4:
        """On the device, in the kernels' layout."""
        packed, scales = (torch.from_numpy(part).to(target.name) for part in (self.packed, self.scales))
        stored = self.global_scale if convention == "multiply" else 1 / self.global_scale
        return ops_cuda.pack_nvfp4(packed, scales, stored, convention)

    def values(self) -> F64:
        """Weights in fp64."""
        return int4.nvfp4(self.packed, self.scales, self.global_scale)


def _small_enough(target: Target, n: int, k: int) -> int:
    """The emulation takes wide weights with fewer inputs; a GPU takes all."""
    return k if target is CUDA or n < 1000 else 64


@NVFP4_GROUP
@pytest.mark.parametrize("m", [1, 8, 17])
@pytest.mark.parametrize("n", WIDTHS)
def test_nvfp4_padded_widths(sm70: Target, n: int, m: int) -> None:
    """Logical widths that are no multiple of 32: padded inside, sliced before anyone sees it, exact weights."""
    k = _small_enough(sm70, n, K)
    checkpoint = Nvfp4.make(n, k)
    packed = checkpoint.pack(sm70)
    assert packed.padded_n == -(-n // 32) * 32
    x = sm70.put(inputs.normal(inputs.generator(m, n), m, k, sigma=0.1))
    out = ops_cuda.linear_nvfp4(x, packed, out=sm70.unwritten(m, n))
    expected = dense.linear(f64(x), checkpoint.values())
    magnitude = dense.linear_magnitude(f64(x), checkpoint.values())
    limit = tolerance.dot(expected, magnitude, k, sm70.arithmetic, extra=2)
    judge.assert_within(f64(out), expected, limit, f"nvfp4 {m}x{n}")


@NVFP4_GROUP
def test_nvfp4_strided_output_touches_only_its_columns(sm70: Target) -> None:
    """An output that is a slice of a wider buffer: its neighbours keep their canaries."""
    checkpoint = Nvfp4.make(24, 64)
    x = sm70.put(inputs.normal(inputs.generator(3), 3, 64))
    wide = torch.full((3, 40), 77.0, dtype=torch.float16, device=sm70.name)
    ops_cuda.linear_nvfp4(x, checkpoint.pack(sm70), out=wide[:, 8:32])
    apart = ops_cuda.linear_nvfp4(x, checkpoint.pack(sm70))
    judge.assert_bits_equal(array(wide[:, 8:32]), array(apart), "slice")
    assert (array(wide[:, :8]) == 77).all()
    assert (array(wide[:, 32:]) == 77).all()


@NVFP4_GROUP
def test_nvfp4_conventions_give_the_same_weight(sm70: Target) -> None:
    checkpoint = Nvfp4.make(24, 64)
    one, other = checkpoint.pack(sm70, "multiply"), checkpoint.pack(sm70, "divide")
    judge.assert_bits_equal(array(one.dequantize()), array(other.dequantize()), "conventions")
    judge.assert_within(f64(one.dequantize()), checkpoint.values(), tolerance.exact(checkpoint.values()), "weights")


@NVFP4_GROUP
@pytest.mark.parametrize(("n", "broken"), [(24, False), (48, True), (4120, False), (8240, True)])
def test_negative_control_alignment_16(n: int, broken: bool) -> None:
    """Scales written in packs of 32 but read at a width padded to 16: 8240 shows what 4120 hides."""
    checkpoint = Nvfp4.make(n, K)
    scales = fp8.decode(checkpoint.scales, fp8.E4M3).T
    x = inputs.normal(inputs.generator(n), 8, K, sigma=0.1).astype(np.float64)
    right = dense.linear(x, checkpoint.values())
    codes = checkpoint.values() / np.repeat(scales.T, 16, axis=1)
    seen = codes * np.repeat(int4.misread_scales(scales, alignment=16).T, 16, axis=1)
    error = judge.relative_l2(dense.linear(x, seen), right)
    assert error > 0.1 if broken else error == 0.0, error
    aligned = codes * np.repeat(int4.misread_scales(scales, alignment=32).T, 16, axis=1)
    assert judge.relative_l2(dense.linear(x, aligned), right) < 1e-12


@AWQ_GROUP
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("m", "n"), [(1, 24), (8, 48), (17, 136)])
def test_awq(sm70: Target, m: int, n: int, group: int) -> None:
    """Packed words in AWQ's order, zeros as they are, several group sizes, widths that pad."""
    k = 256
    rng = inputs.generator(n, group)
    qweight = rng.integers(0, 2**32, size=(k, n // 8), dtype=np.uint32).view(np.int32)
    qzeros = rng.integers(0, 2**32, size=(k // group, n // 8), dtype=np.uint32).view(np.int32)
    scales = rng.uniform(0.01, 0.05, size=(k // group, n)).astype(np.float16)
    weight = int4.awq(qweight, qzeros, scales)
    packed = ops_cuda.pack_awq(*(torch.from_numpy(part).to(sm70.name) for part in (qweight, qzeros, scales)))
    x = sm70.put(inputs.normal(rng, m, k, sigma=0.5))
    out = ops_cuda.linear_int4(x, packed, out=sm70.unwritten(m, n))
    expected = dense.linear(f64(x), weight)
    # scale * code - scale * zero, each kept whole in fp32: the error scales with both parts.
    most = dense.linear_magnitude(f64(x), np.repeat(scales.astype(np.float64) * 15, group, axis=0).T)
    limit = tolerance.dot(expected, 2 * most, k, sm70.arithmetic, extra=4)
    judge.assert_within(f64(out), expected, limit, f"awq {m}x{n} g{group}")


@AWQ_GROUP
def test_awq_one_hot_rows_read_single_weights(sm70: Target) -> None:
    """x = e_j picks an input: a swapped nibble or lane is a wrong weight, not noise."""
    rng = inputs.generator(9)
    qweight = rng.integers(0, 2**32, size=(64, 5), dtype=np.uint32).view(np.int32)
    qzeros = rng.integers(0, 2**32, size=(2, 5), dtype=np.uint32).view(np.int32)
    scales = np.full((2, 40), 0.25, dtype=np.float16)
    packed = ops_cuda.pack_awq(*(torch.from_numpy(part).to(sm70.name) for part in (qweight, qzeros, scales)))
    out = ops_cuda.linear_int4(sm70.put(np.eye(64, dtype=np.float32)), packed, out=sm70.unwritten(64, 40))
    weight = int4.awq(qweight, qzeros, scales).T
    judge.assert_within(f64(out), weight, tolerance.exact(weight), "single weights")


@AWQ_GROUP
@pytest.mark.parametrize(
    ("shape", "said"),
    [((33, 8, 33, 8), "k = 33|33"), ((32, 8, 3, 8), "scales"), ((32, 8, 1, 7), "AWQ")],
    ids=["k-33", "groups-3", "zeros-narrow"],
)
def test_wrong_awq_is_named(sm70: Target, shape: tuple[int, int, int, int], said: str) -> None:
    k, words, groups, zero_words = shape
    with pytest.raises(ValueError, match=said):
        ops_cuda.pack_awq(
            torch.zeros(k, words, dtype=torch.int32, device=sm70.name),
            torch.zeros(groups, zero_words, dtype=torch.int32, device=sm70.name),
            torch.zeros(groups, 8 * words, dtype=torch.float16, device=sm70.name),
        )


@NVFP4_GROUP
@pytest.mark.parametrize(
    ("scale_code", "global_scale", "convention", "said"),
    [
        (0xB8, 0.5, "multiply", "negative"),
        (0x7F, 0.5, "multiply", "NaN"),
        (0x38, 0.0, "multiply", "0.0"),
        (0x38, 0.5, "guess", "guess"),
    ],
)
def test_wrong_nvfp4_is_named(sm70: Target, scale_code: int, global_scale: float, convention: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ops_cuda.pack_nvfp4(
            torch.zeros(24, 32, dtype=torch.uint8, device=sm70.name),
            torch.full((24, 4), scale_code, dtype=torch.uint8, device=sm70.name),
            global_scale,
            convention,  # type: ignore[arg-type]
        )


@pytest.mark.group("sm70 head")
@pytest.mark.parametrize("m", [1, 8])
def test_candidate_logits(sm70: Target, m: int) -> None:
    """FP32 dots of the original rows, gathered by id; repeated ids and any order."""
    rng = inputs.generator(m)
    k = 5120 if sm70 is CUDA else 256
    weight, x = inputs.normal(rng, 500, k, sigma=0.1), inputs.normal(rng, m, k, sigma=0.1)
    ids = rng.integers(0, 500, size=(m, 64))
    out = ops_cuda.candidate_logits(
        sm70.put(x), sm70.put(weight), sm70.put(ids), out=sm70.unwritten(m, 64, dtype=torch.float32)
    )
    ops_cuda.raise_on_fault(out.device)
    wide_x, wide_weight = x.astype(np.float64), weight.astype(np.float64)
    expected = dense.candidate_logits(wide_x, wide_weight, ids)
    magnitude = dense.candidate_logits(np.abs(wide_x), np.abs(wide_weight), ids)
    judge.assert_within(f64(out), expected, tolerance.dot(expected, magnitude, k), "candidates")


@pytest.mark.group("sm70 head")
def test_fp32_logits_keep_what_fp16_collapses(sm70: Target) -> None:
    """64 logits that are one fp16 number stay 64 numbers, on the dense and on the candidate path."""
    weight = np.zeros((64, 32), dtype=np.float32)
    weight[:, 0], weight[:, 1] = 1.0, np.arange(64) / 64
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :2] = 1.0, 2.0**-12
    exact = dense.linear(x.astype(np.float64), weight.astype(np.float64))
    ids = sm70.put(np.arange(64)[None])
    for out in (
        ops_cuda.dense_logits(sm70.put(x), sm70.put(weight)),
        ops_cuda.candidate_logits(sm70.put(x), sm70.put(weight), ids),
    ):
        judge.assert_within(f64(out), exact, tolerance.exact(exact), "fp32 logits")


@pytest.mark.group("sm70 head")
def test_an_id_that_is_no_row_is_reported(sm70: Target) -> None:
    out = ops_cuda.candidate_logits(
        sm70.put(np.ones((1, 32))), sm70.put(np.ones((64, 32))), sm70.put(np.array([[3, 64]]))
    )
    assert array(out).tolist() == [[32.0, -np.inf]]
    with pytest.raises(ValueError, match="64"):
        ops_cuda.raise_on_fault(out.device)
