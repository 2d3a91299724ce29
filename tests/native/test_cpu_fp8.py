"""FP8 on the CPU: every code decodes exactly, every encoding is the nearest, and FP8 caches hold those codes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

from engine.ops import functional, reference
from tests.native.cpu_paths import assert_same_bits, same_on_every_path

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = [E4M3, E5M2]
ALL_CODES = torch.arange(256, dtype=torch.uint8)


def value(code: int, dtype: torch.dtype) -> float:
    """The number of a code by its definition."""
    mantissa_bits, bias = (3, 7) if dtype is E4M3 else (2, 15)
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if dtype is E4M3 and code & 0x7F == 0x7F:
        return float("nan")
    if dtype is E5M2 and exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    if exponent == 0:
        return math.ldexp(sign * mantissa, 1 - bias - mantissa_bits)
    return math.ldexp(sign * (1 + mantissa / (1 << mantissa_bits)), exponent - bias)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.float16])
def test_all_256_codes_decode_exactly(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    expected = torch.tensor([value(code, dtype) for code in range(256)]).to(out_dtype)
    (out,) = same_on_every_path(lambda: (functional.fp8_decode(ALL_CODES.view(dtype), out_dtype=out_dtype),))
    assert_same_bits(out, expected, "decoded")


@pytest.mark.parametrize("dtype", FORMATS)
def test_all_finite_codes_survive_a_round_trip(dtype: torch.dtype) -> None:
    wide = functional.fp8_decode(ALL_CODES.view(dtype))
    finite = wide.isfinite()
    codes = functional.fp8_encode(wide, dtype).view(torch.uint8)
    assert torch.equal(codes[finite], ALL_CODES[finite])
    # Infinities saturate; every NaN, of either sign, is 0x7F.
    largest = 0x7E if dtype is E4M3 else 0x7B
    assert {int(code) & 0x7F for code in codes[wide.isinf()]} <= {largest}
    assert {int(code) for code in codes[wide.isnan()]} == {0x7F}


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_half_encodes_to_the_nearest_even_code(dtype: torch.dtype) -> None:
    """Exact over all 65536 halves: the boundary between neighbours is their midpoint, and ties take the even code."""
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    codes = functional.fp8_encode(halves, dtype).view(torch.uint8)
    finite_codes = [code for code in range(128) if abs(value(code, dtype)) < float("inf")]
    values = torch.tensor([value(code, dtype) for code in finite_codes], dtype=torch.float64)
    size = halves.double().abs().clamp(max=values[-1])
    at = torch.bucketize(size, (values[1:] + values[:-1]) / 2)  # lower neighbour on a tie
    odd_tie = (at < len(values) - 1) & (size == (values + torch.roll(values, -1))[at] / 2) & (at % 2 == 1)
    expected = (at + odd_tie).to(torch.uint8) | (halves.view(torch.int16) < 0).to(torch.uint8) << 7
    expected = torch.where(halves.isnan(), torch.full_like(expected, 0x7F), expected)
    assert_same_bits(codes, expected, "codes of all halves")
    assert_same_bits(functional.fp8_encode(halves.float(), dtype).view(torch.uint8), expected, "the same from float32")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.037])
def test_floats_encode_as_the_twin_does(dtype: torch.dtype, scale: float) -> None:
    """Magnitudes from far below the smallest step to beyond the largest number, and the neighbours of each midpoint."""
    x = torch.randn(20001, generator=torch.Generator().manual_seed(1)) * torch.logspace(-8, 6, 20001)
    finite = torch.tensor([value(code, dtype) for code in range(127)])
    middles = (finite[1:] + finite[:-1]) / 2
    middles = middles[middles.isfinite()] * scale
    x = torch.cat((x, middles, torch.nextafter(middles, middles * 0), torch.nextafter(middles, middles * 2), -middles))
    (codes,) = same_on_every_path(lambda: (functional.fp8_encode(x, dtype, scale=scale),))
    assert_same_bits(codes.view(torch.uint8), reference.fp8_encode(x, dtype, scale=scale).view(torch.uint8), "codes")
    decoded = functional.fp8_decode(codes, scale=scale)
    assert_same_bits(decoded, reference.fp8_decode(codes, scale=scale), "decoded")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, E4M3, E5M2])
@pytest.mark.parametrize("rope", [True, False], ids=["rope_store_kv", "store_kv"])
def test_the_cache_holds_the_codes_of_the_twin(dtype: torch.dtype, rope: bool) -> None:
    scales = (0.5, 2.0) if dtype in FORMATS else (1.0, 1.0)
    keywords = dict(zip(("k_scale", "v_scale"), scales, strict=True))
    qkv, table = torch.randn(19, 8 * 32) * 3, torch.randn(40, 12, 2)
    positions, slots = torch.randint(0, 40, (19,), dtype=torch.int32), torch.randperm(42)[:19]
    slots[7] = -1
    heads = qkv.view(19, 8, 32)

    def run(ops: object) -> torch.Tensor:
        bits = torch.full((6, 2, 7, 2, 32 * dtype.itemsize), 0x55, dtype=torch.uint8)
        cache = bits.view(dtype)
        if rope:
            ops.rope_store_kv(  # type: ignore[attr-defined]
                qkv, table, positions, cache[:, 0], cache[:, 1], slots, interleaved=False, **keywords
            )
        else:
            ops.store_kv(heads[:, 4:6], heads[:, 6:], cache[:, 0], cache[:, 1], slots, **keywords)  # type: ignore[attr-defined]
        return bits

    (stored,) = same_on_every_path(lambda: (run(functional),))
    assert_same_bits(stored, run(reference), "cache bytes")


def store(dtype: torch.dtype = torch.float32, **changes: object) -> Callable[[], object]:
    cache = torch.zeros(4, 2, 8, 2, 32).to(dtype)
    arguments = {
        "k": torch.zeros(2, 2, 32),
        "v": torch.zeros(2, 2, 32),
        "k_cache": cache[:, 0],
        "v_cache": cache[:, 1],
        "slot_mapping": torch.tensor([0, 31]),
    }
    return lambda: functional.store_kv(**(arguments | changes))  # type: ignore[arg-type]


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("slot_mapping[1] is 32, allowed -1..31", store(slot_mapping=torch.tensor([0, 32]))),
    ("k: saw shape (2, 3, 32), need [any, 2, 32]", store(k=torch.zeros(2, 3, 32))),
    ("v: saw dtype torch.float16", store(v=torch.zeros(2, 2, 32).half())),
    ("k_scale, v_scale: saw 0.5, 1.0 for a torch.float32 cache, need 1.0", store(k_scale=0.5)),
    ("k_scale: saw -1.0, need a finite number greater than 0", store(E4M3, k_scale=-1.0)),
    ("dtype: saw torch.float16, allowed", lambda: functional.fp8_encode(torch.zeros(3), torch.float16)),
    ("x: saw dtype torch.float64", lambda: functional.fp8_encode(torch.zeros(3, dtype=torch.float64), E4M3)),
    ("scale: saw 0.0", lambda: functional.fp8_encode(torch.zeros(3), E4M3, scale=0.0)),
    ("codes: saw dtype torch.uint8", lambda: functional.fp8_decode(ALL_CODES)),
    ("out_dtype: saw torch.int8", lambda: functional.fp8_decode(ALL_CODES.view(E4M3), out_dtype=torch.int8)),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
