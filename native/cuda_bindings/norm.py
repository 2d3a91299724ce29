"""RMSNorm on CUDA."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64

import torch

from native.cuda_bindings import check, launch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight for each row, in float32 with one rounding.

    Args:
        x: float16 [T, H]; rows may be strided. 16-byte rows (H and strides multiples of 8) are read as vectors.
        weight: float32 [H].
        eps: positive, inside the square root.
        out: like ``x``; may be ``x``.
    """
    check.tensor("x", x, torch.float16, (None, None), contiguous=False)
    rows, width = x.shape
    check.tensor("weight", weight, torch.float32, (width,), like=x)
    check.positive("eps", eps)
    out = check.output("out", out, torch.float16, (rows, width), x)
    if rows == 0 or width == 0:
        return out
    arguments = (
        x,
        c_int64(x.stride(0)),
        weight,
        out,
        c_int64(out.stride(0)),
        c_int64(rows),
        c_int(width),
        c_float(eps),
    )
    launch.run("rms_norm", 1, x.device, arguments)
    return out
