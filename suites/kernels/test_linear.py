"""Matrix products with quantised and plain weights against fp64 over the same decoded weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import accuracy, inputs
from suites.oracles import dense, gguf_blocks, judge, tolerance
from suites.oracles.arrays import F64
from suites.recording import Record
from suites.targets import CPU, Target, array, f64

# n, k of every product in SmolLM2, then shapes that no tile divides.
MODEL = [(inputs.QKV, 576), (576, 576), (3072, 576), (576, 1536)]
ODD = [(1, 32), (15, 64), (17, 96), (33, 160), (100, 32), (31, 544)]


@dataclass(frozen=True, slots=True)
class Format:
    """A weight format: how to make raw data, what it means, and how many roundings decoding one weight costs."""

    name: str
    decode_roundings: int

    def make(self, target: Target, n: int, k: int) -> tuple[functional.Weight, F64, F64]:
        """The packed weight, its exact values, and the magnitudes that rounding errors scale with."""
        rng = inputs.generator(n, k)
        if self.name == "q4_1":
            blocks = inputs.q4_1_blocks(rng, n, k)
            packed: functional.Weight = functional.pack_q4_1(target.put(blocks))
            return packed, gguf_blocks.q4_1(blocks), gguf_blocks.q4_1_magnitude(blocks)
        if self.name == "q8_0":
            blocks = inputs.q8_0_blocks(rng, n, k)
            values = gguf_blocks.q8_0(blocks)
            return functional.pack_q8_0(target.put(blocks)), values, np.abs(values)
        weight = target.put(inputs.normal(rng, n, k, sigma=0.1))
        return weight, f64(weight), np.abs(f64(weight))


# Decoding d * code + m and summing by blocks rounds at most four times more than a plain dot product.
Q4_1, Q8_0, DENSE = Format("q4_1", 4), Format("q8_0", 4), Format("dense", 0)
CASES = [
    pytest.param(fmt, m, n, k, id=f"{fmt.name}-m{m}-n{n}-k{k}", marks=pytest.mark.group(f"linear_{fmt.name}"))
    for fmt in (Q4_1, Q8_0, DENSE)
    for m, shapes in ((1, MODEL + ODD), (3, ODD), (8, MODEL), (17, ODD[3:]))
    for n, k in shapes
]
FORMATS = [pytest.param(fmt, id=fmt.name, marks=pytest.mark.group(f"linear_{fmt.name}")) for fmt in (Q4_1, Q8_0, DENSE)]


def _expect(
    target: Target, fmt: Format, x: torch.Tensor, weight: tuple[F64, F64], residual: F64 | None
) -> tuple[F64, tolerance.Tolerance]:
    values, magnitudes = weight
    expected = dense.linear(f64(x), values, residual)
    magnitude = dense.linear_magnitude(f64(x), magnitudes, residual)
    extra = fmt.decode_roundings + (residual is not None)
    limit = tolerance.dot(expected, magnitude, x.shape[1], target.arithmetic, extra)
    if target is CPU and fmt is not DENSE:
        limit = tolerance.fixed_point(limit, f64(x), values)
    return expected, limit


@pytest.mark.parametrize(("fmt", "m", "n", "k"), CASES)
def test_against_fp64(targets: tuple[Target, ...], record: Record, fmt: Format, m: int, n: int, k: int) -> None:
    x = inputs.normal(inputs.generator(m, n, k, 1), m, k)
    for target in targets:
        packed, *weight = fmt.make(target, n, k)
        rows = target.put(x)
        out = functional.linear(rows, packed, out=target.unwritten(m, n))
        expected, limit = _expect(target, fmt, rows, (weight[0], weight[1]), None)
        judge.assert_within(f64(out), expected, limit, f"{target.name} {fmt.name}")
        accuracy.record_share(record, target, f64(out), expected, limit)


@pytest.mark.parametrize("fmt", FORMATS)
def test_residual_is_added_and_may_be_the_output(targets: tuple[Target, ...], fmt: Format) -> None:
    rng = inputs.generator(4)
    x, residual = inputs.normal(rng, 5, 576), inputs.normal(rng, 5, 576, sigma=3.0)
    for target in targets:
        packed, *weight = fmt.make(target, 576, 576)
        rows, added = target.put(x), target.put(residual)
        expected, limit = _expect(target, fmt, rows, (weight[0], weight[1]), f64(added))
        apart = functional.linear(rows, packed, residual=added, out=target.unwritten(5, 576))
        judge.assert_within(f64(apart), expected, limit, f"{target.name} {fmt.name} residual")
        functional.linear(rows, packed, residual=added, out=added)
        judge.assert_bits_equal(array(added), array(apart), f"{target.name} {fmt.name} residual in place")


@pytest.mark.parametrize("fmt", FORMATS)
def test_strided_rows(targets: tuple[Target, ...], fmt: Format) -> None:
    x = inputs.normal(inputs.generator(5), 9, 96)
    for target in targets:
        packed, *_ = fmt.make(target, 40, 96)
        packed_rows = functional.linear(target.put(x), packed)
        strided = functional.linear(inputs.strided_rows(target.put(x)), packed, out=target.unwritten(9, 40))
        judge.assert_bits_equal(array(strided), array(packed_rows), f"{target.name} {fmt.name} strided")


@pytest.mark.parametrize("fmt", [FORMATS[0], FORMATS[1]])
def test_packing_loses_nothing(targets: tuple[Target, ...], fmt: Format) -> None:
    """A packed weight decodes to the file's values, each rounded once to fp32, tile padding or not."""
    for target in targets:
        for n, k in ((1, 32), (17, 96), (48, 64)):
            packed, values, _ = fmt.make(target, n, k)
            assert not isinstance(packed, torch.Tensor)
            decoded = packed.dequantize()
            judge.assert_bits_equal(array(decoded), values.astype(np.float32), f"{target.name} {fmt.name} {n}x{k}")


@pytest.mark.parametrize("fmt", FORMATS)
def test_one_hot_rows_read_single_weights(targets: tuple[Target, ...], fmt: Format) -> None:
    """x = e_j picks column j: a swapped nibble, lane or group shows as a wrong weight, not as noise."""
    k = 96
    for target in targets:
        packed, values, _ = fmt.make(target, 33, k)
        out = functional.linear(target.put(np.eye(k, dtype=np.float32)), packed, out=target.unwritten(k, 33))
        limit = tolerance.dot(values.T, np.abs(values.T), 1, target.arithmetic, extra=4)
        if fmt is Q4_1:
            blocks = gguf_blocks.q4_1_magnitude(inputs.q4_1_blocks(inputs.generator(33, k), 33, k))
            limit = tolerance.dot(values.T, blocks.T, 1, target.arithmetic, extra=4)
        judge.assert_within(f64(out), values.T, limit, f"{target.name} {fmt.name} one-hot")


@pytest.mark.parametrize("fmt", FORMATS)
def test_wrong_input_is_named(native_library: str, fmt: Format) -> None:
    packed, *_ = fmt.make(CPU, 16, 64)
    x = torch.zeros(2, 64)
    wrong: list[tuple[Callable[[], torch.Tensor], str]] = [
        (lambda: functional.linear(torch.zeros(2, 32), packed), "32"),
        (lambda: functional.linear(x.double(), packed), "float64"),
        (lambda: functional.linear(torch.zeros(64), packed), "64"),
        (lambda: functional.linear(torch.zeros(64, 2).T, packed), "stride"),
        (lambda: functional.linear(x, packed, out=torch.zeros(2, 15)), "15"),
        (lambda: functional.linear(x, packed, residual=torch.zeros(3, 16)), "3"),
        (lambda: functional.linear(x, packed, out=torch.zeros(2, 16, dtype=torch.float16)), "float16"),
    ]
    for call, said in wrong:
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.group("linear_q4_1")
def test_wrong_blocks_are_named(native_library: str) -> None:
    with pytest.raises(ValueError, match="34"):
        functional.pack_q4_1(torch.zeros(4, 1, 34, dtype=torch.uint8))
    with pytest.raises(ValueError, match="int8"):
        functional.pack_q4_1(torch.zeros(4, 1, 20, dtype=torch.int8))
    with pytest.raises(ValueError, match="20"):
        functional.pack_q8_0(torch.zeros(4, 1, 20, dtype=torch.uint8))
