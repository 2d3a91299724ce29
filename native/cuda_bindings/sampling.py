"""Sampling on CUDA: plan and apply of the cutoffs, weights, draws. float32 logits.

Nothing waits for the device and nothing is copied: an op allocates `WORKSPACE_ROW_BYTES` for each row.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

import torch

from native.cuda_bindings import check, launch

PLAN_COLUMNS = 4
MAX_WIDTH = 2**22
"""Integer weights of up to 2**40 each must sum below 2**62."""

MAX_LAUNCH_ROWS = 65535
"""Rows of one launch."""

WORKSPACE_ROW_BYTES = 36416
"""What an op allocates for each row, whatever the width of the row; the library refuses another size."""

_POINTERS = ("logits", "top_k", "top_p", "temperature", "plan", "workspace", "bits", "excluded", "tokens", "out")
_ROW_DTYPES = {
    "top_k": torch.int32,
    "top_p": torch.float32,
    "temperature": torch.float32,
    "bits": torch.int64,
    "excluded": torch.int64,
    "tokens": torch.int64,
}


class _Args(ctypes.Structure):
    """SamplingArgs of native/cuda/sampling_workspace.cuh, field for field."""

    _fields_ = (
        *((name, c_void_p) for name in _POINTERS),
        *((name, c_int64) for name in ("workspace_row_bytes", "rows", "width", "stride", "apply")),
        ("mask_value", c_double),
    )


_ARGS_BYTES = c_int64(ctypes.sizeof(_Args))


def sampling_plan(
    logits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_plan`."""
    rows = _check(logits, top_k=top_k, top_p=top_p, temperature=temperature)
    out = _new_or_checked(out, rows, logits)
    _run("sampling_plan", logits, top_k=top_k, top_p=top_p, temperature=temperature, plan=out)
    return out


def sampling_cut(
    logits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    *,
    mask_value: float = -torch.inf,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_cut`."""
    rows = _check(logits, top_k=top_k, top_p=top_p, temperature=temperature)
    out = _new_or_checked(out, rows, logits)
    _check_writable(logits)
    _run(
        "sampling_plan",
        logits,
        top_k=top_k,
        top_p=top_p,
        temperature=temperature,
        plan=out,
        apply=1,
        mask_value=mask_value,
    )
    return out


def sampling_apply(
    logits: torch.Tensor, plan: torch.Tensor, temperature: torch.Tensor | None = None, *, mask_value: float = -torch.inf
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_apply`."""
    _check(logits, plan, temperature=temperature)
    _check_writable(logits)
    _run("sampling_apply", logits, scratch=False, plan=plan, temperature=temperature, mask_value=mask_value)
    return logits


def sampling_masses(
    logits: torch.Tensor,
    plan: torch.Tensor,
    temperature: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_masses`."""
    _check(logits, plan, temperature=temperature)
    out = check.output("out", out, torch.int64, tuple(logits.shape), logits, contiguous=True)
    _run("sampling_masses", logits, plan=plan, temperature=temperature, out=out)
    return out


def sampling_weigh(
    logits: torch.Tensor,
    plan: torch.Tensor,
    token_ids: torch.Tensor,
    temperature: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_weigh`. An id outside the row weighs nothing."""
    rows = _check(logits, plan, temperature=temperature, tokens=token_ids)
    out = check.output("out", out, torch.int64, (rows, 2), logits, contiguous=True)
    _run("sampling_weigh", logits, plan=plan, temperature=temperature, tokens=token_ids, out=out)
    return out


def sampling_draw(
    logits: torch.Tensor,
    plan: torch.Tensor,
    random_bits: torch.Tensor,
    temperature: torch.Tensor | None = None,
    *,
    excluded: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `engine.ops.sampling.sampling_draw`. An excluded id outside the row excludes nothing."""
    rows = _check(logits, plan, temperature=temperature, bits=random_bits, excluded=excluded)
    out = check.output("out", out, torch.int64, (rows,), logits, contiguous=True)
    _run("sampling_draw", logits, plan=plan, temperature=temperature, bits=random_bits, excluded=excluded, out=out)
    return out


def _check(logits: torch.Tensor, plan: torch.Tensor | None = None, **per_row: torch.Tensor | None) -> int:
    """Rows of ``logits``, once every argument is one that the library takes.

    A step on the device takes no longer than a few launches, so what is right is seen with few questions; what is not
    goes through `check`, which says what is wrong.
    """
    if not isinstance(logits, torch.Tensor):
        raise ValueError(f"logits: saw {type(logits).__name__}, need a tensor")
    device = logits.device
    right = logits.dtype is torch.float32 and logits.dim() == 2 and device.type == launch.device_type()
    if not (right and logits.stride(1) == 1 and logits.shape[0] <= check.INT_MAX):
        check.tensor("logits", logits, torch.float32, (None, None), contiguous=False)
    rows, width = logits.shape
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"logits: saw {width} columns, allowed 1..{MAX_WIDTH}")
    if plan is not None:
        check.tensor("plan", plan, torch.int32, (rows, PLAN_COLUMNS), like=logits)
        check.aligned("plan", plan, PLAN_COLUMNS)
    for name, tensor in per_row.items():
        if tensor is None:
            continue
        right = isinstance(tensor, torch.Tensor) and tensor.dtype is _ROW_DTYPES[name] and tensor.device == device
        if not (right and tensor.shape == (rows,) and tensor.is_contiguous()):
            check.tensor(name, tensor, _ROW_DTYPES[name], (rows,), like=logits)
    return int(rows)


def _check_writable(logits: torch.Tensor) -> None:
    if logits.stride(0) == 0:  # one row in the place of many
        check.output("logits", logits, torch.float32, tuple(logits.shape), logits)


def _new_or_checked(out: torch.Tensor | None, rows: int, logits: torch.Tensor) -> torch.Tensor:
    if out is None:
        return torch.empty((rows, PLAN_COLUMNS), dtype=torch.int32, device=logits.device)
    return check.output("out", out, torch.int32, (rows, PLAN_COLUMNS), logits, contiguous=True)


def _run(
    op: str,
    logits: torch.Tensor,
    *,
    scratch: bool = True,
    apply: int = 0,
    mask_value: float = 0.0,
    **tensors: torch.Tensor | None,
) -> None:
    rows = logits.shape[0]
    if rows <= MAX_LAUNCH_ROWS:
        if rows != 0:
            _launch(op, logits, scratch, apply, mask_value, tensors)
        return
    # The grid's second dimension counts rows; more of them take several launches, each on rows of its own.
    for first in range(0, rows, MAX_LAUNCH_ROWS):
        part = slice(first, first + MAX_LAUNCH_ROWS)
        per_row = {name: None if tensor is None else tensor[part] for name, tensor in tensors.items()}
        _launch(op, logits[part], scratch, apply, mask_value, per_row)


def _launch(
    op: str,
    logits: torch.Tensor,
    scratch: bool,
    apply: int,
    mask_value: float,
    tensors: dict[str, torch.Tensor | None],
) -> None:
    rows, width = logits.shape
    workspace = None
    if scratch:
        # The caching allocator hands it back to the same stream, so it may go out of scope before the kernels ran.
        workspace = torch.empty(rows * WORKSPACE_ROW_BYTES, dtype=torch.uint8, device=logits.device)
    given = tensors.get
    args = _Args(
        logits.data_ptr(),
        *(_address(given(name)) for name in _POINTERS[1:5]),
        _address(workspace),
        *(_address(given(name)) for name in _POINTERS[6:]),
        *(WORKSPACE_ROW_BYTES, rows, width, logits.stride(0), apply, mask_value),
    )
    launch.run(op, 1, logits.device, (ctypes.byref(args), _ARGS_BYTES))


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
