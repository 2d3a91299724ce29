"""FP8 codes of whole tensors: exact decoding, nearest-even saturating encoding."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call
from native.bindings.kv_store import KV_CODES

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE_DTYPES = (torch.float16, torch.float32)


class _Fp8(Args):
    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("wide_bytes", ctypes.c_int64),
        ("kv_code", ctypes.c_int64),
        ("scale", ctypes.c_double),
    )


class Fp8Encode(_Fp8):
    OP = "fp8_encode_cpu"
    CAPABILITY = 1


class Fp8Decode(_Fp8):
    OP = "fp8_decode_cpu"
    CAPABILITY = 1


def bind_fp8_encode(
    x: torch.Tensor, dtype: torch.dtype, *, scale: float = 1.0, out: torch.Tensor | None = None
) -> Call:
    """See `engine.ops.kv_codec.fp8_encode`."""
    if dtype not in FP8_DTYPES:
        raise ValueError(f"dtype: saw {dtype}, allowed {', '.join(map(str, FP8_DTYPES))}")
    check.tensor("x", x, WIDE_DTYPES, tuple(x.shape))
    check.positive("scale", scale)
    out = check.output("out", out, dtype, tuple(x.shape), contiguous=True)
    args = Fp8Encode(x.data_ptr(), out.data_ptr(), x.numel(), x.element_size(), KV_CODES[dtype], scale)
    return Call(args, out, (x,))


def bind_fp8_decode(
    codes: torch.Tensor,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.kv_codec.fp8_decode`."""
    check.tensor("codes", codes, FP8_DTYPES, tuple(codes.shape))
    check.positive("scale", scale)
    if out_dtype not in WIDE_DTYPES:
        raise ValueError(f"out_dtype: saw {out_dtype}, allowed {', '.join(map(str, WIDE_DTYPES))}")
    out = check.output("out", out, out_dtype, tuple(codes.shape), contiguous=True)
    args = Fp8Decode(codes.data_ptr(), out.data_ptr(), codes.numel(), out.element_size(), KV_CODES[codes.dtype], scale)
    return Call(args, out, (codes,))
