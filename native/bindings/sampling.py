"""Sampling: plan and apply of the cutoffs, weights, draws."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call

PLAN_COLUMNS = 4
MAX_WIDTH = 2**22
"""Integer weights of up to 2**40 each must sum below 2**62."""

_LOGITS = (
    ("logits", ctypes.c_void_p),
    ("rows", ctypes.c_int64),
    ("width", ctypes.c_int64),
    ("stride", ctypes.c_int64),
)


class SamplingPlan(Args):
    OP = "sampling_plan_cpu"
    CAPABILITY = 1
    _fields_ = (
        *_LOGITS,
        ("top_k", ctypes.c_void_p),
        ("top_p", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
    )


class SamplingApply(Args):
    OP = "sampling_apply_cpu"
    CAPABILITY = 1
    _fields_ = (
        *_LOGITS,
        ("plan", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("mask_value", ctypes.c_double),
    )


class SamplingMasses(Args):
    OP = "sampling_masses_cpu"
    CAPABILITY = 1
    _fields_ = (
        *_LOGITS,
        ("plan", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("masses", ctypes.c_void_p),
    )


class SamplingWeigh(Args):
    OP = "sampling_weigh_cpu"
    CAPABILITY = 1
    _fields_ = (
        *_LOGITS,
        ("plan", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class SamplingDraw(Args):
    OP = "sampling_draw_cpu"
    CAPABILITY = 1
    _fields_ = (
        *_LOGITS,
        ("plan", ctypes.c_void_p),
        ("temperature", ctypes.c_void_p),
        ("bits", ctypes.c_void_p),
        ("excluded", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
    )


def bind_sampling_plan(
    logits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.sampling.sampling_plan`."""
    rows = _check_rows(logits, top_k=top_k, top_p=top_p, temperature=temperature)
    out = check.output("out", out, torch.int32, (rows, PLAN_COLUMNS), contiguous=True)
    args = SamplingPlan(
        **_logits(logits),
        top_k=_pointer(top_k),
        top_p=_pointer(top_p),
        temperature=_pointer(temperature),
        plan=out.data_ptr(),
    )
    return Call(args, out, (logits, top_k, top_p, temperature))


def bind_sampling_apply(
    logits: torch.Tensor, plan: torch.Tensor, temperature: torch.Tensor | None = None, mask_value: float = -torch.inf
) -> Call:
    """See `engine.ops.sampling.sampling_apply`; the output is ``logits`` itself."""
    _check_rows(logits, plan=plan, temperature=temperature)
    check.output("logits", logits, torch.float32, tuple(logits.shape))
    args = SamplingApply(
        **_logits(logits), plan=plan.data_ptr(), temperature=_pointer(temperature), mask_value=mask_value
    )
    return Call(args, logits, (plan, temperature))


def bind_sampling_masses(
    logits: torch.Tensor,
    plan: torch.Tensor,
    temperature: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.sampling.sampling_masses`."""
    _check_rows(logits, plan=plan, temperature=temperature)
    out = check.output("out", out, torch.int64, tuple(logits.shape), contiguous=True)
    args = SamplingMasses(
        **_logits(logits), plan=plan.data_ptr(), temperature=_pointer(temperature), masses=out.data_ptr()
    )
    return Call(args, out, (logits, plan, temperature))


def bind_sampling_weigh(
    logits: torch.Tensor,
    plan: torch.Tensor,
    token_ids: torch.Tensor,
    temperature: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.sampling.sampling_weigh`."""
    rows = _check_rows(logits, plan=plan, temperature=temperature, token_ids=token_ids)
    out = check.output("out", out, torch.int64, (rows, 2), contiguous=True)
    args = SamplingWeigh(
        **_logits(logits),
        plan=plan.data_ptr(),
        temperature=_pointer(temperature),
        tokens=token_ids.data_ptr(),
        weights=out.data_ptr(),
    )
    return Call(args, out, (logits, plan, token_ids, temperature))


def bind_sampling_draw(
    logits: torch.Tensor,
    plan: torch.Tensor,
    random_bits: torch.Tensor,
    temperature: torch.Tensor | None = None,
    excluded: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.sampling.sampling_draw`."""
    rows = _check_rows(logits, plan=plan, temperature=temperature, random_bits=random_bits, excluded=excluded)
    out = check.output("out", out, torch.int64, (rows,), contiguous=True)
    args = SamplingDraw(
        **_logits(logits),
        plan=plan.data_ptr(),
        temperature=_pointer(temperature),
        bits=random_bits.data_ptr(),
        excluded=_pointer(excluded),
        tokens=out.data_ptr(),
    )
    return Call(args, out, (logits, plan, random_bits, temperature, excluded))


_ROW_DTYPES = {
    "top_k": torch.int32,
    "top_p": torch.float32,
    "temperature": torch.float32,
    "token_ids": torch.int64,
    "random_bits": torch.int64,
    "excluded": torch.int64,
}


def _check_rows(logits: torch.Tensor, plan: torch.Tensor | None = None, **per_row: torch.Tensor | None) -> int:
    if isinstance(logits, torch.Tensor) and logits.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"logits: saw dtype {logits.dtype}, need torch.float32: half precision makes ties that fp32 logits do not "
            "have, so compute the head in fp32"
        )
    check.tensor("logits", logits, torch.float32, (None, None), contiguous=False)
    rows, width = logits.shape
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"logits: saw {width} columns, allowed 1..{MAX_WIDTH}")
    if plan is not None:
        check.tensor("plan", plan, torch.int32, (rows, PLAN_COLUMNS))
    for name, tensor in per_row.items():
        if tensor is not None:
            check.tensor(name, tensor, _ROW_DTYPES[name], (rows,))
    return int(rows)


def _logits(logits: torch.Tensor) -> dict[str, int]:
    rows, width = logits.shape
    return {"logits": logits.data_ptr(), "rows": rows, "width": width, "stride": logits.stride(0)}


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
