"""What FP8 costs keys and values: relative L2 on Gaussian numbers against theory, and on the real cache of SmolLM2."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import inputs
from suites.oracles import fp8, judge
from suites.oracles.arrays import F64
from suites.oracles.fp8 import Fp8Format
from suites.recording import Record
from suites.targets import f64

pytestmark = [pytest.mark.group("fp8 kv error"), pytest.mark.usefixtures("native_library")]

FORMATS = pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
# Ideal rounding of Gaussian numbers far from the ends of the range; the interval is over sigma within its octave.
GAUSSIAN = {"e4m3": (0.0264, 0.0266), "e5m2": (0.0526, 0.0529)}
# Half a unit in the last place of a normal number: no tensor inside the range can be worse.
WORST = {"e4m3": 1 / 17, "e5m2": 1 / 9}
# E4M3 with unit scale, N(0, sigma^2): numbers below 2^-9 flush, numbers above 448 saturate.
E4M3_RANGE = [(0.05, 0.02692), (1 / 64, 0.0385), (1e-3, 0.562), (128.0, 0.0275), (200.0, 0.078)]
SAMPLES = 400_000
TEXT = (
    "A paged cache keeps the keys and values of every token in blocks. Eight bits a number halve its size; "
    "what that costs depends on how they are spread. Count: 1, 2, 3, 5, 8, 13, 21. def add(a, b): return a + b."
)


def _error(values: F64, fmt: Fp8Format) -> float:
    """Relative L2 of what the native codec keeps; its codes are the oracle's, each of them."""
    encoded = functional.fp8_encode(torch.from_numpy(values.astype(np.float32)), inputs.FP8_DTYPES[fmt.name])
    codes = encoded.view(torch.uint8).numpy()
    judge.assert_bits_equal(codes, fp8.encode(values.astype(np.float32), fmt), f"{fmt.name} codes")
    return judge.relative_l2(f64(functional.fp8_decode(encoded, out_dtype=torch.float32)), values)


def _gaussian(sigma: float) -> F64:
    return np.random.default_rng(517).normal(scale=sigma, size=SAMPLES)


@FORMATS
def test_gaussian_error_is_what_theory_says(record: Record, fmt: Fp8Format) -> None:
    """The mean over an octave of sigma; 3 standard errors of 400,000 samples (relative 0.4 %) beside the interval."""
    low, high = GAUSSIAN[fmt.name]
    errors = [_error(_gaussian(2.0**step), fmt) for step in (-0.75, -0.5, -0.25, 0.0)]
    record.metric("relative L2, Gaussian", float(f"{np.mean(errors):.4g}"), "1", better="lower")
    assert low * 0.996 <= np.mean(errors) <= high * 1.004, errors


@pytest.mark.parametrize(("sigma", "expected"), E4M3_RANGE)
def test_e4m3_at_the_ends_of_its_range(sigma: float, expected: float) -> None:
    """Unit scale loses small values to zero and large ones to 448; three digits of the expectation are stated."""
    assert _error(_gaussian(sigma), fp8.E4M3) == pytest.approx(expected, rel=0.02)


def test_e5m2_is_flat_where_e4m3_is_not() -> None:
    assert _error(_gaussian(1e-3), fp8.E5M2) == pytest.approx(0.0528, rel=0.01)


@pytest.fixture(scope="module")
def real_cache() -> dict[str, F64] | str:
    """Keys and values ``[tokens, heads, dim]`` of every layer after a prefill of a mixed text, or why not."""
    # Here and not above: a machine without the packages that read a model still runs the other cases.
    try:
        from engine.config import EngineConfig, read_environment
        from engine.loading import load_model
        from engine.model.weights_gguf import default_model_path
        from engine.request import SamplingParams
        from engine.state.sequence import SequenceState
        from engine.steps.prefill import PrefillChunk, prefill

        path = read_environment(os.environ).model or default_model_path()
    except (ModuleNotFoundError, ValueError) as missing:
        return str(missing)
    model = load_model(EngineConfig(model=path, threads=2, max_model_len=512))
    tokens = model.tokenizer.encode(TEXT)
    sequence = SequenceState(tokens, model.pool)
    prefill(model.runner, [PrefillChunk(sequence, SamplingParams(), len(tokens))])
    sequence.commit(len(tokens))
    size = model.pool.block_size
    slots = [(sequence.block_table[t // size], t % size) for t in range(len(tokens))]
    parts = {}
    for layer in range(30):
        for name, cache in (("K", model.cache.keys(layer)), ("V", model.cache.values(layer))):
            values = f64(cache)
            parts[f"{name}{layer}"] = np.stack([values[block, slot] for block, slot in slots])
    return parts


@FORMATS
def test_real_keys_and_values(record: Record, real_cache: dict[str, F64] | str, fmt: Fp8Format) -> None:
    """Every layer's K and V of SmolLM2, unit scale: the worst tensor is reported, each inside the hard bound."""
    if isinstance(real_cache, str):
        record.not_run(real_cache)
    for kind in ("K", "V"):
        errors = {name: _error(values, fmt) for name, values in real_cache.items() if name[0] == kind}
        worst = max(errors, key=errors.__getitem__)
        below = [name for name, values in real_cache.items() if name[0] == kind and _flushed(values, fmt) == 0]
        record.metric(f"relative L2, worst {kind}", float(f"{errors[worst]:.3g}"), "1", better="lower")
        record.metric(f"relative L2, mean {kind}", float(f"{np.mean(list(errors.values())):.3g}"), "1", better="lower")
        for name in below:
            assert errors[name] <= WORST[fmt.name], f"{name}: {errors[name]:.4f}"
        assert errors[worst] < 2 * GAUSSIAN[fmt.name][1], f"{worst}: {errors[worst]:.4f}"


def _flushed(values: F64, fmt: Fp8Format) -> int:
    """How many numbers lie where the half-unit bound of normal numbers does not hold."""
    smallest_normal = float(fmt.magnitude(1 << fmt.mantissa_bits))
    return int(((values != 0) & (np.abs(values) < smallest_normal)).sum())


def test_one_mantissa_bit_halves_the_error(record: Record, real_cache: dict[str, F64] | str) -> None:
    """E5M2 over E4M3 is near 2 on real tensors too: the median over layers, K and V."""
    if isinstance(real_cache, str):
        record.not_run(real_cache)
    ratios = [_error(values, fp8.E5M2) / _error(values, fp8.E4M3) for values in real_cache.values()]
    record.metric("E5M2 over E4M3, median", float(f"{np.median(ratios):.3g}"), "1")
    assert 1.9 < float(np.median(ratios)) < 2.1, ratios
