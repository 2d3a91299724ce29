"""FP8 codes of keys and values, and writing them into the paged cache without rotation.

Faces like those of `engine.ops.functional`, which re-exports them; the plain twins are in `engine.ops.reference`.
"""

from __future__ import annotations

import torch

from engine.ops.placement import on_cuda
from native import ops as native_ops
from native import ops_cuda


def fp8_encode(
    x: torch.Tensor, dtype: torch.dtype, *, scale: float = 1.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Codes of x / scale: nearest, ties to even, saturated to the largest finite number, one NaN code (0x7F).

    Args:
        x: float16 or float32, contiguous, any shape.
        dtype: float8_e4m3fn or float8_e5m2.
        scale: positive; the quotient is a float32.
        out: ``dtype``, contiguous, the shape of ``x``.
    """
    if on_cuda("fp8_encode", x):
        return ops_cuda.fp8_encode(x, dtype, scale=scale, out=out)
    return native_ops.bind_fp8_encode(x, dtype, scale=scale, out=out)()


def fp8_decode(
    codes: torch.Tensor,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values of the codes times ``scale``: a float32 product, rounded once to ``out_dtype``.

    Args:
        codes: float8_e4m3fn or float8_e5m2, contiguous, any shape; NaN and infinite codes stay what they are.
        scale: positive.
        out_dtype: float16 or float32.
        out: ``out_dtype``, contiguous, the shape of ``codes``.
    """
    if on_cuda("fp8_decode", codes):
        return ops_cuda.fp8_decode(codes, scale=scale, out_dtype=out_dtype, out=out)
    return native_ops.bind_fp8_decode(codes, scale=scale, out_dtype=out_dtype, out=out)()


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write keys and values into their cache slots.

    Args:
        k, v: float32 on the CPU, float16 on CUDA, [T, Hkv, D]; tokens and heads may be strided.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], float32 (CPU alone), float16, float8_e4m3fn or float8_e5m2.
        slot_mapping: int64 [T]; slot = block * block_size + offset, -1 (PAD) is not written.
        k_scale, v_scale: FP8 gets the code of x / scale; 1.0 unless the cache is FP8.
    """
    if on_cuda("store_kv", k):
        ops_cuda.store_kv(k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)
    else:
        native_ops.bind_store_kv(k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)()
