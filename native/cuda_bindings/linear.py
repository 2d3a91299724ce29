"""Linear layers on CUDA: FP16, GGUF Q4_1 and Q8_0 tiles, int4 and NVFP4 in the SM70 packing."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

import torch

from native.cuda_bindings import check, launch
from native.cuda_bindings.packed import PackedInt4, PackedNvfp4, check_few_rows

_FP16, _, _Q4_1, _Q8_0, _INT4, _NVFP4, _NVFP4_FEW_ROWS = range(7)
_GGUF_TILE_ROWS, _GGUF_GROUP = 16, 32
_Q4_1_TILE_BYTES, _Q8_0_TILE_BYTES = 320, 544
# The kernel keeps E2M1 * E4M3 in a half as 2^-7 of its value.
_NVFP4_FACTOR = 2.0**7


class _Args(ctypes.Structure):
    """LinearArgs of native/cuda/linear.h, field for field."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "params", "residual", "out")),
        *((name, c_int64) for name in ("m", "n", "k", "x_stride", "weight_stride", "residual_stride", "out_stride")),
        ("group", c_int64),
        ("out_fp32", c_int64),
        ("factor", c_double),
        ("format", c_int64),
    )


def linear_f16(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """x @ weight.T (+ residual), FP32 accumulators, one rounding to ``out_dtype``.

    Args:
        x: float16 [M, K], rows may be strided; any M, meant for up to 64.
        weight: float16 [N, K], rows may be strided. K, strides and addresses in multiples of 8 elements run fast.
        residual: ``out_dtype`` [M, N], added in float32; may be ``out``.
        out: ``out_dtype`` [M, N].
        out_dtype: float16, or float32 for logits.
    """
    check.tensor("weight", weight, torch.float16, (None, None), like=x, contiguous=False)
    return _linear(x, weight, None, weight.shape[0], weight.shape[1], _FP16, residual, out, out_dtype)


def linear_q4_1(
    x: torch.Tensor,
    data: torch.Tensor,
    n: int,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """`linear_f16` over the tiles of ``engine.ops.PackedQ4_1``: ``data`` uint8 [ceil(n / 16), k / 32, 320].

    Codes are multiplied as exact halves; scale and minimum join in float32, so no weight is rounded.
    """
    k = _check_gguf(data, n, _Q4_1_TILE_BYTES, x)
    return _linear(x, data, None, n, k, _Q4_1, residual, out, out_dtype)


def linear_q8_0(
    x: torch.Tensor,
    data: torch.Tensor,
    n: int,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """`linear_f16` over the tiles of ``engine.ops.PackedQ8_0``: ``data`` uint8 [ceil(n / 16), k / 32, 544]."""
    k = _check_gguf(data, n, _Q8_0_TILE_BYTES, x)
    return _linear(x, data, None, n, k, _Q8_0, residual, out, out_dtype)


def linear_int4(
    x: torch.Tensor,
    weight: PackedInt4,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """`linear_f16` over an int4 weight; [M, n] of the logical width, whatever the padding."""
    tiles = (weight.padded_n // 32, weight.k // 32, 32, 16)
    check.tensor("weight.codes", weight.codes, torch.uint8, tiles, like=x)
    check.tensor("weight.params", weight.params, torch.float16, (tiles[0], weight.k // weight.group, 32, 2), like=x)
    return _linear(x, weight.codes, weight.params, weight.n, weight.k, _INT4, residual, out, out_dtype, weight.group)


def linear_nvfp4(
    x: torch.Tensor,
    weight: PackedNvfp4,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
    few_rows: bool = False,
) -> torch.Tensor:
    """`linear_f16` over an NVFP4 weight, decoded exactly; [M, n] of the logical width, whatever the padding.

    ``few_rows``: by the kernel for at most `packed.FEW_ROWS` rows, which asks for weights further ahead; the same bits.
    """
    if few_rows:
        check_few_rows(x)
    tiles = (weight.padded_n // 32, weight.k // 32, 32, 16)
    check.tensor("weight.codes", weight.codes, torch.uint8, tiles, like=x)
    check.tensor("weight.scales", weight.scales, torch.float8_e4m3fn, (*tiles[:3], 2), like=x)
    factor = weight.global_scale * _NVFP4_FACTOR
    kind = _NVFP4_FEW_ROWS if few_rows else _NVFP4
    return _linear(x, weight.codes, weight.scales, weight.n, weight.k, kind, residual, out, out_dtype, factor=factor)


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    params: torch.Tensor | None,
    n: int,
    k: int,
    weight_format: int,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
    out_dtype: torch.dtype,
    group: int = 0,
    factor: float = 1.0,
) -> torch.Tensor:
    check.tensor("x", x, torch.float16, (None, k), contiguous=False)
    m = x.shape[0]
    if out_dtype not in (torch.float16, torch.float32):
        raise ValueError(f"out_dtype: saw {out_dtype}, allowed torch.float16, torch.float32")
    if residual is not None:
        check.tensor("residual", residual, out_dtype, (m, n), like=x, contiguous=False)
    if weight_format != _FP16:
        check.aligned("x", x, 8)
    out = check.output("out", out, out_dtype, (m, n), x)
    if m == 0 or n == 0:
        return out
    args = _Args(
        x.data_ptr(),
        weight.data_ptr(),
        None if params is None else params.data_ptr(),
        None if residual is None else residual.data_ptr(),
        out.data_ptr(),
        *(m, n, k, x.stride(0), weight.stride(0), 0 if residual is None else residual.stride(0), out.stride(0)),
        group,
        int(out_dtype == torch.float32),
        factor,
        weight_format,
    )
    launch.run("linear", 1, x.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))
    return out


def _check_gguf(data: torch.Tensor, n: int, tile_bytes: int, x: torch.Tensor) -> int:
    check.tensor("weight.data", data, torch.uint8, (-(-n // _GGUF_TILE_ROWS), None, tile_bytes), like=x)
    return data.shape[1] * _GGUF_GROUP
