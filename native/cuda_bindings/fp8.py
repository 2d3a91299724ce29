"""FP8 codes of whole tensors on CUDA: exact decoding, nearest-even saturating encoding."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64

import torch

from native.cuda_bindings import check, launch

# The number a kernel knows a cache's format by.
KV_FORMATS = {torch.float16: 0, torch.float8_e4m3fn: 1, torch.float8_e5m2: 2}
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_WIDE = (torch.float16, torch.float32)


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
    _check_format("dtype", dtype)
    check.tensor("x", x, _WIDE, tuple(x.shape))
    check.positive("scale", scale)
    out = check.output("out", out, dtype, tuple(x.shape), x, contiguous=True)
    if x.numel():
        arguments = (x, c_int(x.dtype == torch.float32), out, c_int64(x.numel()), c_float(scale))
        launch.run("fp8_encode", 1, x.device, (*arguments, c_int(KV_FORMATS[dtype])))
    return out


def fp8_decode(
    codes: torch.Tensor,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype = torch.float16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values of the codes times ``scale``: a float32 product, rounded once to ``out_dtype``.

    Args:
        codes: float8_e4m3fn or float8_e5m2, contiguous, any shape; NaN and infinite codes stay what they are.
        scale: positive.
        out_dtype: float16 or float32.
        out: ``out_dtype``, contiguous, the shape of ``codes``.
    """
    check.tensor("codes", codes, _FP8, tuple(codes.shape))
    check.positive("scale", scale)
    if out_dtype not in _WIDE:
        raise ValueError(f"out_dtype: saw {out_dtype}, allowed {', '.join(map(str, _WIDE))}")
    out = check.output("out", out, out_dtype, tuple(codes.shape), codes, contiguous=True)
    if codes.numel():
        arguments = (codes, out, c_int(out_dtype == torch.float32), c_int64(codes.numel()), c_float(scale))
        launch.run("fp8_decode", 1, codes.device, (*arguments, c_int(KV_FORMATS[codes.dtype])))
    return out


def _check_format(name: str, dtype: torch.dtype) -> None:
    if dtype not in _FP8:
        raise ValueError(f"{name}: saw {dtype}, allowed {', '.join(map(str, _FP8))}")
