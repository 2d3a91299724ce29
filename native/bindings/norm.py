"""RMSNorm and SwiGLU."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call


class RmsNorm(Args):
    OP = "rms_norm_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("h", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("eps", ctypes.c_double),
    )


class SiluMul(Args):
    OP = "silu_mul_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("gate_up", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("i", ctypes.c_int64),
        ("in_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
    )


def bind_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> Call:
    """x / sqrt(mean(x^2) + eps) * weight for each row of ``x`` float32 [T, H]; ``out`` may be ``x``."""
    check.tensor("x", x, torch.float32, (None, None), contiguous=False)
    t, h = x.shape
    if h == 0:
        raise ValueError(f"x: saw shape {tuple(x.shape)}, need at least one column")
    check.tensor("weight", weight, torch.float32, (h,))
    check.positive("eps", eps)
    out = check.output("out", out, torch.float32, (t, h))
    args = RmsNorm(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        t=t,
        h=h,
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        eps=eps,
    )
    return Call(args, out, (x, weight))


def bind_silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> Call:
    """silu(gate) * up for ``gate_up`` float32 [M, 2 I] (gate | up) -> float32 [M, I]."""
    check.tensor("gate_up", gate_up, torch.float32, (None, None), contiguous=False)
    m, width = gate_up.shape
    if width == 0 or width % 2:
        raise ValueError(f"gate_up: saw {width} columns, need an even number: gate | up")
    out = check.output("out", out, torch.float32, (m, width // 2))
    args = SiluMul(
        gate_up=gate_up.data_ptr(),
        out=out.data_ptr(),
        m=m,
        i=width // 2,
        in_stride=gate_up.stride(0),
        out_stride=out.stride(0),
    )
    return Call(args, out, (gate_up,))
