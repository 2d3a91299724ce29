"""Sampling ops over logits: plan the cutoffs, apply them in place, weigh tokens and draw.

`sampling_plan` only reads; `sampling_apply` writes where the plan removes. So nothing ever needs a copy of the
logits, on the ordinary path or on a rare one, and no call waits for the device. Logits are float32 on every device; the
device decides who runs, and the answer is the same to the bit. Definitions and plain twins are in
`engine.ops.sampling_reference`, name for name.

A dtype, shape or stride that an op does not take raises ``ValueError`` with what was seen and what is allowed. A bad
*value* in a row is no error of the call: it raises the `RowFlag` of that row, and its neighbours are unaffected.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.ops.sampling_reference import PlanColumn, RowFlag
from native.bindings import sampling as native_cpu
from native.bindings.call import Program
from native.cuda_bindings import sampling as native_cuda

__all__ = [
    "PlanColumn",
    "RowFlag",
    "bind_greedy",
    "bind_sampling_cut",
    "bind_sampling_sample",
    "sampling_apply",
    "sampling_cut",
    "sampling_draw",
    "sampling_masses",
    "sampling_plan",
    "sampling_sample",
    "sampling_weigh",
]


def sampling_plan(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """What stays of each row: int32 [B, 4], columns `PlanColumn`.

    Args:
        logits: f32 [B, V], any row stride, columns adjacent, V up to 2**22; only read.
        top_k: i32 [B]; 0 and below, or V and above, keeps all. None: off for every row.
        top_p: f32 [B] in (0, 1]; 1 keeps all that top-k kept. None: off for every row.
        temperature: f32 [B], 0 for a greedy row. None: every row is taken as it is.
        out: where to put the plan.
    """
    if logits.is_cuda:
        return native_cuda.sampling_plan(logits, top_k, top_p, temperature, out=out)
    return native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature, out)()


def sampling_apply(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, mask_value: float = -torch.inf
) -> Tensor:
    """Cuts `logits` f32 [B, V] to their plan, in place, and returns that same tensor.

    A kept entry is the fp32 quotient by `temperature` (which must be the plan's; its own bits where there is none), a
    removed one becomes `mask_value`. Greedy rows and rows at fault keep every bit.
    """
    if logits.is_cuda:
        return native_cuda.sampling_apply(logits, plan, temperature, mask_value=mask_value)
    return native_cpu.bind_sampling_apply(logits, plan, temperature, mask_value)()


def sampling_cut(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    mask_value: float = -torch.inf,
    out: Tensor | None = None,
) -> Tensor:
    """`sampling_plan`, then `sampling_apply` of that plan: cuts `logits` f32 [B, V] in place and returns the plan.

    On a GPU the cut reuses what the plan has seen and does not read what lies wholly below it.
    """
    if logits.is_cuda:
        return native_cuda.sampling_cut(logits, top_k, top_p, temperature, mask_value=mask_value, out=out)
    plan = native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature, out)()
    native_cpu.bind_sampling_apply(logits, plan, temperature, mask_value)()
    return plan


def sampling_sample(
    logits: Tensor,
    random_bits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sampling_plan`, then `sampling_draw` by that plan: the plan and one token id per row. The logits are only read.

    On a GPU one call, and the draw reuses what the plan has seen.
    """
    if logits.is_cuda:
        return native_cuda.sampling_sample(logits, random_bits, top_k, top_p, temperature)
    plan = native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature)()
    return plan, native_cpu.bind_sampling_draw(logits, plan, random_bits, temperature)()


def bind_sampling_cut(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    mask_value: float = -torch.inf,
    out: Tensor | None = None,
) -> Callable[[], Tensor]:
    """`sampling_cut`, checked now and run at each call of what comes back: on whatever the same tensors hold then.

    Each run returns the same plan tensor. One that is in use on two streams at once needs a binding for each.
    """
    if logits.is_cuda:
        return native_cuda.bind_sampling_cut(logits, top_k, top_p, temperature, mask_value, out)
    plan = native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature, out)
    apply = native_cpu.bind_sampling_apply(logits, plan.out, temperature, mask_value)
    both = Program((plan, apply))

    def cut() -> Tensor:
        both()
        return plan.out

    return cut


def bind_sampling_sample(
    logits: Tensor,
    random_bits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    plan: Tensor | None = None,
    out: Tensor | None = None,
) -> Callable[[], Tensor]:
    """`sampling_sample`, checked now and run at each call of what comes back, which returns the ids.

    Args:
        plan: where to put the plan, for a caller that wants it; int32 [B, 4].
        out: where to put the ids, int64 [B].
    """
    if logits.is_cuda:
        return native_cuda.bind_sampling_sample(logits, random_bits, top_k, top_p, temperature, plan=plan, out=out)
    planned = native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature, plan)
    draw = native_cpu.bind_sampling_draw(logits, planned.out, random_bits, temperature, None, out)
    both = Program((planned, draw))

    def sample() -> Tensor:
        both()
        return draw.out

    return sample


def bind_greedy(logits: Tensor, *, out: Tensor | None = None) -> Callable[[], Tensor]:
    """`bind_sampling_sample` of rows that are all greedy: what comes back gives the lowest id of each maximum."""
    temperature = torch.zeros(logits.shape[0], dtype=torch.float32, device=logits.device)
    bits = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    return bind_sampling_sample(logits, bits, None, None, temperature, out=out)


def sampling_masses(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Integer weight i64 [B, V] of every entry that the plan keeps, 0 for the others; a row at fault is all 0.

    Divided by their row sum they are exactly the distribution that `sampling_draw` draws from.
    """
    if logits.is_cuda:
        return native_cuda.sampling_masses(logits, plan, temperature, out=out)
    return native_cpu.bind_sampling_masses(logits, plan, temperature, out)()


def sampling_weigh(
    logits: Tensor, plan: Tensor, token_ids: Tensor, temperature: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Weight of one token per row and the row's total: i64 [B, 2]; probability is their quotient.

    An id outside the row is a ``ValueError`` on the CPU; a GPU does not wait to look and weighs it nothing.
    """
    if logits.is_cuda:
        return native_cuda.sampling_weigh(logits, plan, token_ids, temperature, out=out)
    return native_cpu.bind_sampling_weigh(logits, plan, token_ids, temperature, out)()


def sampling_draw(
    logits: Tensor,
    plan: Tensor,
    random_bits: Tensor,
    temperature: Tensor | None = None,
    *,
    excluded: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token id per row, i64 [B], from 64 random bits per row; -1 where there is nothing to draw.

    Greedy rows give the lowest id of their maximum. `logits` may be read before or after `sampling_apply`; after it,
    without `temperature`. `excluded` i64 [B] takes one id out of each row first (-1: none).
    """
    if logits.is_cuda:
        return native_cuda.sampling_draw(logits, plan, random_bits, temperature, excluded=excluded, out=out)
    return native_cpu.bind_sampling_draw(logits, plan, random_bits, temperature, excluded, out)()
