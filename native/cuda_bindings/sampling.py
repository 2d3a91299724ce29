"""Sampling on CUDA: plan and apply of the cutoffs, weights, draws. float32 logits.

Nothing waits for the device and nothing is copied: an op allocates `WORKSPACE_ROW_BYTES` for each row.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from native.cuda_bindings import check, launch

PLAN_COLUMNS = 4
MAX_WIDTH = 2**22
"""Integer weights of up to 2**40 each must sum below 2**62."""

MAX_LAUNCH_ROWS = 65535
"""Rows of one launch."""

WORKSPACE_ROW_BYTES = 43392
"""What an op allocates for each row, whatever the width of the row; the library refuses another size."""

_ROW_DTYPES = {
    "top_k": torch.int32,
    "top_p": torch.float32,
    "temperature": torch.float32,
    "bits": torch.int64,
    "excluded": torch.int64,
    "tokens": torch.int64,
}


# SamplingArgs of native/cuda/sampling_workspace.cuh, field for field: the pointers logits, top_k, top_p, temperature,
# plan, workspace, bits, excluded, tokens, out; then the bytes of a workspace row, rows, width, stride, apply; the mask.
_ARGS = struct.Struct("=10Q5qd")
_CAPABILITIES = {"sampling_plan": 2}


def bind_sampling_cut(
    logits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    mask_value: float = -torch.inf,
    out: torch.Tensor | None = None,
) -> BoundCall:
    """See `engine.ops.sampling.bind_sampling_cut`."""
    rows = _check(logits, top_k=top_k, top_p=top_p, temperature=temperature)
    out = _new_or_checked(out, rows, logits)
    _check_writable(logits)
    settings = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    return BoundCall("sampling_plan", out, logits, apply=1, mask_value=mask_value, plan=out, **settings)


def bind_sampling_sample(
    logits: torch.Tensor,
    random_bits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    *,
    plan: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> BoundCall:
    """See `engine.ops.sampling.bind_sampling_sample`."""
    rows = _check(logits, bits=random_bits, top_k=top_k, top_p=top_p, temperature=temperature)
    plan = _new_or_checked(plan, rows, logits)
    out = check.output("out", out, torch.int64, (rows,), logits, contiguous=True)
    settings = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    return BoundCall("sampling_sample", out, logits, plan=plan, bits=random_bits, out=out, **settings)


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
    settings = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    _run("sampling_plan", logits, apply=1, mask_value=mask_value, plan=out, **settings)
    return out


def sampling_sample(
    logits: torch.Tensor,
    random_bits: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `engine.ops.sampling.sampling_sample`."""
    rows = _check(logits, bits=random_bits, top_k=top_k, top_p=top_p, temperature=temperature)
    plan = _new_or_checked(None, rows, logits)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    settings = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
    _run("sampling_sample", logits, plan=plan, bits=random_bits, out=out, **settings)
    return plan, out


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


def _run(op: str, logits: torch.Tensor, **options: Any) -> None:
    """Launches ``op`` once for all rows, or for as many at a time as a grid counts; each launch has its own rows."""
    rows = logits.shape[0]
    if rows == 0:
        return
    if rows <= MAX_LAUNCH_ROWS:
        record, _ = _record(logits, **options)
        launch.run_record(op, _CAPABILITIES.get(op, 1), logits.device, record)
        return
    for first in range(0, rows, MAX_LAUNCH_ROWS):
        part = slice(first, first + MAX_LAUNCH_ROWS)
        of_part = {name: value[part] if isinstance(value, torch.Tensor) else value for name, value in options.items()}
        _run(op, logits[part], **of_part)


class BoundCall:
    """An op bound to its tensors and to a workspace of its own; calling it runs the op and returns ``out``.

    The tensors' *content* may change between calls; their addresses and shapes are settled.
    """

    __slots__ = ("_capability", "_device", "_keep", "_op", "_record", "out")

    def __init__(self, op: str, result: torch.Tensor, logits: torch.Tensor, **options: Any) -> None:
        if not 1 <= logits.shape[0] <= MAX_LAUNCH_ROWS:
            raise ValueError(f"logits: saw {logits.shape[0]} rows, a bound call takes 1..{MAX_LAUNCH_ROWS}")
        self._op, self._capability, self._device = op, _CAPABILITIES.get(op, 1), logits.device
        self._record, workspace = _record(logits, **options)
        self._keep = (logits, workspace, options)  # what the record points to
        self.out = result

    def __call__(self) -> torch.Tensor:
        launch.run_record(self._op, self._capability, self._device, self._record)
        return self.out


def _record(
    logits: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    plan: torch.Tensor | None = None,
    scratch: bool = True,
    bits: torch.Tensor | None = None,
    excluded: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    apply: int = 0,
    mask_value: float = 0.0,
) -> tuple[bytes, torch.Tensor | None]:
    """The arguments of one launch, and its workspace."""
    rows, width = logits.shape
    workspace = None
    if scratch:
        # The caching allocator hands it back to the same stream, so it may go out of scope before the kernels ran.
        workspace = torch.empty(rows * WORKSPACE_ROW_BYTES, dtype=torch.uint8, device=logits.device)
    record = _ARGS.pack(
        logits.data_ptr(),
        0 if top_k is None else top_k.data_ptr(),
        0 if top_p is None else top_p.data_ptr(),
        0 if temperature is None else temperature.data_ptr(),
        0 if plan is None else plan.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        0 if bits is None else bits.data_ptr(),
        0 if excluded is None else excluded.data_ptr(),
        0 if tokens is None else tokens.data_ptr(),
        0 if out is None else out.data_ptr(),
        WORKSPACE_ROW_BYTES,
        rows,
        width,
        logits.stride(0),
        apply,
        mask_value,
    )
    return record, workspace
