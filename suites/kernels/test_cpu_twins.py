"""CPU twins of the device ops against the same oracles: Gated DeltaNet, FP8 codes and caches, packed weights, logits.

The device code has cases of its own (`test_sm70_*`); these run where there is no GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import inputs
from suites.kernels.gdn_blocks import Kernel, block_of, judge_block
from suites.oracles import dense, fp8, gdn, int4, judge, tolerance
from suites.oracles.arrays import U8
from suites.oracles.fp8 import Fp8Format
from suites.targets import CPU, array, f64

pytestmark = [pytest.mark.group("cpu twins"), pytest.mark.usefixtures("native_library")]

TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMATS = pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
EPS = 1e-6
GROUP = 32


def _codes(tensor: torch.Tensor) -> U8:
    codes: U8 = tensor.contiguous().view(torch.uint8).numpy()
    return codes


@pytest.mark.parametrize(
    ("heads", "dims"), [((1, 3), (32, 16)), ((2, 2), (64, 64)), ((1, 1), (20, 5))], ids=["r3", "r1", "odd"]
)
def test_recurrence_keeps_one_state_a_position(heads: tuple[int, int], dims: tuple[int, int]) -> None:
    """Two sequences of 8 drafted positions in permuted slots, and a padded one between them."""
    slots = [9, 3, 12, 5, 0, 7, 1, 14, -1, -1, 2, -1, 4, 13, 6, 10, 8, 11]
    block = block_of(CPU, (8, 2, 8), [15, -1, 2], slots, heads=heads, dims=dims)
    judge_block(CPU, block, functional.gdn_recurrent)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_chunked_prefill(length: int) -> None:
    """Chunks of 64 with a ragged end; only the last token's state is kept."""
    judge_block(CPU, block_of(CPU, (length,), [1], [-1] * (length - 1) + [0]), functional.gdn_chunk)


@pytest.mark.parametrize("kernel", [functional.gdn_recurrent, functional.gdn_chunk], ids=["recurrent", "chunk"])
def test_six_calls(kernel: Kernel) -> None:
    results = []
    for _ in range(6):
        block = block_of(CPU, (70, 8), [1, 2], [-1] * 69 + [0] + [-1] * 7 + [3])
        out = block.run(kernel, CPU.unwritten(*block.v.shape))
        results.append(np.concatenate([array(out).ravel(), array(block.state).ravel()]))
    for number, result in enumerate(results[1:], start=2):
        judge.assert_bits_equal(result, results[0], f"call {number}")


def test_gates() -> None:
    """Softplus over its whole range, linear above 20."""
    a = np.linspace(-30, 30, 121).astype(np.float32)[:, None].repeat(3, axis=1)
    b = a[::-1].copy()
    a_log, dt_bias = np.array([-2.0, 0.0, 1.5]), np.array([0.0, 0.5, -1.0])
    decay, beta = functional.gdn_gates(CPU.put(a), CPU.put(b), CPU.put(a_log), CPU.put(dt_bias))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = gdn.gates(wide_a, wide_b, a_log, dt_bias)
    unit = 2.0**-24
    # As for the device: exp and log1p within 2 ulp each, and the sum's own error through a slope of 1.
    decay_error = 12 * unit * np.abs(expected[0]) + np.exp(a_log) * unit * (np.abs(wide_a) + np.abs(dt_bias) + 1)
    judge.assert_within(f64(decay), expected[0], tolerance.Tolerance(decay_error, "2-ulp exp and log1p"), "decay")
    beta_limit = tolerance.Tolerance(8 * unit * expected[1] + 2.0**-126, "2-ulp exp, sum, quotient")
    judge.assert_within(f64(beta), expected[1], beta_limit, "beta")


def test_gated_norm_comes_before_the_gate() -> None:
    rng, dim = inputs.generator(13), 128
    x, z, weight = inputs.normal(rng, 5, 3, dim), inputs.normal(rng, 5, 3, dim, sigma=3.0), inputs.normal(rng, dim)
    out = functional.gdn_gated_rms_norm(CPU.put(x), CPU.put(z), CPU.put(weight), EPS, out=CPU.unwritten(5, 3, dim))
    expected = gdn.gated_rms_norm(f64(CPU.put(x)), f64(CPU.put(z)), f64(CPU.put(weight)), EPS)
    unit = CPU.arithmetic.accumulate
    relative = tolerance.gamma(dim + 3, unit) / 2 + 8 * unit + tolerance.gamma(8, unit)
    bound = tolerance.Tolerance(relative * np.abs(expected), "rms_norm and silu_mul together")
    judge.assert_within(f64(out), expected, bound, "gated norm")


def test_convolution_and_its_states() -> None:
    """Outputs within the rounding of four products and a SiLU; states are the inputs themselves."""
    rng, channels, lengths = inputs.generator(17), 40, (5, 2)
    x, weight = inputs.normal(rng, sum(lengths), channels), inputs.normal(rng, channels, 4)
    state = inputs.normal(rng, 9, 3, channels)
    initial, slots = [8, 3], [0, 1, -1, 2, 4, 5, 6]
    kept = CPU.put(state)
    out = functional.gdn_conv(
        CPU.put(x),
        CPU.put(weight),
        kept,
        CPU.put(np.array(initial, dtype=np.int32)),
        CPU.put(np.array(slots, dtype=np.int32)),
        inputs.query_start(CPU, lengths),
        out=CPU.unwritten(sum(lengths), channels),
    )
    wide = state.astype(np.float32).astype(np.float64)
    begin, unit = 0, CPU.arithmetic.accumulate
    for length, first in zip(lengths, initial, strict=True):
        rows = slice(begin, begin + length)
        begin += length
        start, taken = f64(CPU.put(state))[first], f64(CPU.put(x))[rows]
        expected, states = gdn.causal_conv(taken, f64(CPU.put(weight)), start)
        taps = np.concatenate([start, taken])
        magnitude = sum(np.abs(taps[i : i + length] * f64(CPU.put(weight))[:, i]) for i in range(4))
        error = 1.1 * tolerance.gamma(4, unit) * magnitude + tolerance.gamma(8, unit) * np.abs(expected)
        judge.assert_within(f64(out)[rows], expected, tolerance.Tolerance(error, "conv + silu"), "conv")
        for token, slot in enumerate(slots[rows]):
            if slot >= 0:
                wide[slot] = states[token]
    judge.assert_within(f64(kept), wide, tolerance.exact(wide), "conv states")


@FORMATS
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0371])
@pytest.mark.parametrize("wide", [torch.float16, torch.float32], ids=["f16", "f32"])
def test_all_codes_decode_exactly(fmt: Fp8Format, scale: float, wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(TORCH[fmt.name])
    actual = array(functional.fp8_decode(codes, scale=scale, out_dtype=wide))
    with np.errstate(over="ignore", invalid="ignore"):
        product = fmt.table().astype(np.float32) * np.float32(scale)
        expected = product if wide is torch.float32 else product.astype(np.float16)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    judge.assert_bits_equal(actual[~nan], expected[~nan], f"{fmt.name} decode")


@FORMATS
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0371])
def test_all_halves_encode_exactly(fmt: Fp8Format, scale: float) -> None:
    """All 65536 halves, infinities, subnormals and NaN among them: no mismatch, not a tolerance."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    encoded = functional.fp8_encode(torch.from_numpy(halves), TORCH[fmt.name], scale=scale)
    with np.errstate(invalid="ignore"):
        quotient = halves.astype(np.float32) / np.float32(scale)
    judge.assert_bits_equal(_codes(encoded), fp8.encode(quotient, fmt), f"{fmt.name} encode")


@FORMATS
def test_store_writes_the_codes_of_its_slots_alone(fmt: Fp8Format) -> None:
    rng = inputs.generator(23)
    k, v = inputs.normal(rng, 5, 2, 64), inputs.normal(rng, 5, 2, 64)
    cache = torch.full((3, 2, 8, 2, 64), 7, dtype=torch.uint8)
    slots = np.array([0, 23, -1, 9, 8])
    stored = cache.clone().view(TORCH[fmt.name])
    functional.store_kv(CPU.put(k), CPU.put(v), stored[:, 0], stored[:, 1], CPU.put(slots), k_scale=0.5, v_scale=2.0)
    expected = cache.numpy().copy()
    for token, slot in enumerate(slots):
        if slot >= 0:
            for which, (given, scale) in enumerate(((k, 0.5), (v, 2.0))):
                wide = given[token].astype(np.float32) / np.float32(scale)
                expected[slot // 8, which, slot % 8] = fp8.encode(wide, fmt)
    judge.assert_bits_equal(_codes(stored), expected, f"{fmt.name} store")


@pytest.mark.parametrize("rows", [1, 8, 17])
@pytest.mark.parametrize("width", [24, 48])
def test_nvfp4_at_padded_widths(width: int, rows: int) -> None:
    """Logical widths that the packing pads: against the oracle's reading of the same codes."""
    rng, k = inputs.generator(width, rows), 64
    packed = rng.integers(0, 256, size=(width, k // 2)).astype(np.uint8)
    scales = rng.integers(0x20, 0x50, size=(width, k // 16)).astype(np.uint8)
    weight = functional.pack_nvfp4(torch.from_numpy(packed), torch.from_numpy(scales), 0.5, "multiply")
    x = CPU.put(inputs.normal(rng, rows, k))
    out = functional.linear(x, weight, out=CPU.unwritten(rows, width))
    exact = int4.nvfp4(packed, scales, 0.5)
    expected = dense.linear(f64(x), exact)
    limit = tolerance.dot(expected, dense.linear_magnitude(f64(x), exact), k, CPU.arithmetic, extra=4)
    judge.assert_within(f64(out), expected, tolerance.fixed_point(limit, f64(x), exact), f"nvfp4 {width}")


def test_candidate_logits_are_the_dense_ones() -> None:
    """Chosen ids, repeated ones among them, against fp64 and against the dense head."""
    rng, rows, width, k = inputs.generator(31), 3, 70, 64
    weight = CPU.put(inputs.normal(rng, width, k)).to(torch.float16)
    x = CPU.put(inputs.normal(rng, rows, k))
    ids = rng.integers(0, width, size=(rows, 9))
    out = functional.candidate_logits(x, weight, CPU.put(ids))
    exact = dense.linear(f64(x), f64(weight))
    magnitude = dense.linear_magnitude(f64(x), f64(weight))
    expected, size = (np.take_along_axis(whole, ids, axis=1) for whole in (exact, magnitude))
    judge.assert_within(f64(out), expected, tolerance.dot(expected, size, k, CPU.arithmetic), "candidates")
    dense_out = functional.dense_logits(x, weight)
    judge.assert_within(f64(dense_out), exact, tolerance.dot(exact, magnitude, k, CPU.arithmetic), "dense head")
