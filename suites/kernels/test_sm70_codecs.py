"""FP8 codecs of the device code: every code and every half, no mismatch; and the KV store that encodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from native import ops_cuda
from suites.kernels import inputs
from suites.oracles import fp8, judge
from suites.oracles.arrays import U8
from suites.oracles.fp8 import Fp8Format
from suites.targets import Target, array

pytestmark = pytest.mark.group("sm70 fp8 codecs")

TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FORMATS = pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
SCALES = pytest.mark.parametrize("scale", [1.0, 0.5, 0.0371, 12.0])
ALL_CODES: U8 = np.arange(256, dtype=np.uint8)
ALL_HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)


def _codes(tensor: torch.Tensor) -> U8:
    codes: U8 = tensor.view(torch.uint8).cpu().numpy()
    return codes


def _fp8(target: Target, codes: U8, fmt: Fp8Format) -> torch.Tensor:
    return torch.from_numpy(codes.copy()).view(TORCH[fmt.name]).to(target.name)


@FORMATS
@SCALES
@pytest.mark.parametrize("wide", [torch.float16, torch.float32], ids=["f16", "f32"])
def test_all_codes_decode_exactly(sm70: Target, fmt: Fp8Format, scale: float, wide: torch.dtype) -> None:
    """Value times scale as an fp32 product, rounded once; NaN and infinity stay what they are."""
    decoded = ops_cuda.fp8_decode(_fp8(sm70, ALL_CODES, fmt), scale=scale, out_dtype=wide)
    with np.errstate(over="ignore", invalid="ignore"):
        product = fmt.table().astype(np.float32) * np.float32(scale)
        expected = product if wide is torch.float32 else product.astype(np.float16)
    actual = array(decoded)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    judge.assert_bits_equal(actual[~nan], expected[~nan], f"{fmt.name} decode")


@FORMATS
@SCALES
def test_all_halves_encode_exactly(sm70: Target, fmt: Fp8Format, scale: float) -> None:
    """All 65536 halves, infinities, subnormals and NaN among them."""
    encoded = ops_cuda.fp8_encode(sm70.put(ALL_HALVES), TORCH[fmt.name], scale=scale)
    with np.errstate(invalid="ignore"):
        quotient = ALL_HALVES.astype(np.float32) / np.float32(scale)
    judge.assert_bits_equal(_codes(encoded), fp8.encode(quotient, fmt), f"{fmt.name} encode")


@FORMATS
def test_ties_and_their_neighbours_encode_exactly(sm70: Target, fmt: Fp8Format) -> None:
    """Every midpoint of two codes in fp32, and the fp32 numbers next to it."""
    values = fmt.table()[: fmt.max_code + 1]
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    around = np.concatenate([np.nextafter(middle, np.float32(0)), middle, np.nextafter(middle, np.float32(np.inf))])
    both = np.concatenate([around, -around])
    encoded = ops_cuda.fp8_encode(sm70.put(both, torch.float32), TORCH[fmt.name])
    judge.assert_bits_equal(_codes(encoded), fp8.encode(both, fmt), f"{fmt.name} ties")


@FORMATS
def test_torch_agrees_inside_the_finite_range(sm70: Target, fmt: Fp8Format) -> None:
    """A second reference, by other people: torch's own conversion of clamped values."""
    most = float(fmt.magnitude(fmt.max_code))
    values = np.clip(ALL_HALVES[np.isfinite(ALL_HALVES)], -most, most).astype(np.float16)
    encoded = ops_cuda.fp8_encode(sm70.put(values), TORCH[fmt.name])
    torch_codes = torch.from_numpy(values).to(TORCH[fmt.name]).view(torch.uint8).numpy()
    judge.assert_bits_equal(_codes(encoded), torch_codes, f"{fmt.name} against torch")


@FORMATS
def test_the_store_writes_codes_and_nothing_else(sm70: Target, fmt: Fp8Format) -> None:
    """store_kv into a strided FP8 cache: exact codes at the slots, canaries everywhere else, PAD unwritten."""
    rng = inputs.generator(fmt.max_code)
    keys, values = (inputs.normal(rng, 5, 2, 64, sigma=3.0) for _ in range(2))
    cache = _fp8(sm70, np.full((3, 2, 7, 2, 64), 0x5A, dtype=np.uint8), fmt)
    slots = np.array([20, -1, 0, 8, -1])
    ops_cuda.store_kv(
        sm70.put(keys), sm70.put(values), cache[:, 0], cache[:, 1], sm70.put(slots), k_scale=0.5, v_scale=2.0
    )
    expected = np.full((3, 2, 7, 2, 64), 0x5A, dtype=np.uint8)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // 7, 0, slot % 7] = fp8.encode(keys[token] / np.float32(0.5), fmt)
            expected[slot // 7, 1, slot % 7] = fp8.encode(values[token] / np.float32(2.0), fmt)
    judge.assert_bits_equal(_codes(cache), expected, f"{fmt.name} store")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: ops_cuda.fp8_encode(x, torch.float16), "float16"),
        (lambda x: ops_cuda.fp8_encode(x, torch.float8_e5m2, scale=0.0), "0.0"),
        (lambda x: ops_cuda.fp8_encode(x.double(), torch.float8_e5m2), "float64"),
        (lambda x: ops_cuda.fp8_decode(x), "float16"),
        (lambda x: ops_cuda.fp8_decode(x.to(torch.float8_e5m2), scale=float("inf")), "inf"),
        (lambda x: ops_cuda.fp8_decode(x.to(torch.float8_e5m2), out_dtype=torch.bfloat16), "bfloat16"),
    ],
    ids=["to-half", "scale-zero", "from-double", "decode-half", "scale-inf", "to-bfloat16"],
)
def test_wrong_input_is_named(sm70: Target, call: object, said: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=said):
        call(sm70.put(np.ones(4, dtype=np.float16)))
