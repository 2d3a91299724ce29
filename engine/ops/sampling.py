"""Sampling ops over logits: plan the cutoffs, apply them in place, weigh tokens and draw.

`sampling_plan` only reads; `sampling_apply` writes where the plan removes. So nothing ever needs a copy of the
logits, on the ordinary path or on a rare one, and no call waits for the device. Definitions and plain twins are in
`engine.ops.sampling_reference`, name for name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ops.sampling_reference import PlanColumn, RowFlag
from native.bindings import sampling as native_cpu

__all__ = [
    "PlanColumn",
    "RowFlag",
    "sampling_apply",
    "sampling_draw",
    "sampling_masses",
    "sampling_plan",
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
        logits: f32 [B, V], any row stride, columns adjacent; only read.
        top_k: i32 [B]; 0 and below, or V and above, keeps all. None: off for every row.
        top_p: f32 [B] in (0, 1]; 1 keeps all that top-k kept. None: off for every row.
        temperature: f32 [B], 0 for a greedy row. None: every row is taken as it is.
        out: where to put the plan.

    Raises:
        ValueError: a dtype, shape or stride that the op does not take. A bad *value* is no error here: it raises the
            `RowFlag` of its row.
    """
    return native_cpu.bind_sampling_plan(logits, top_k, top_p, temperature, out)()


def sampling_apply(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, mask_value: float = -torch.inf
) -> Tensor:
    """Cuts `logits` f32 [B, V] to their plan, in place, and returns that same tensor.

    A kept entry is the fp32 quotient by `temperature` (which must be the plan's; its own bits where there is none), a
    removed one becomes `mask_value`. Greedy rows and rows at fault keep every bit.
    """
    return native_cpu.bind_sampling_apply(logits, plan, temperature, mask_value)()


def sampling_masses(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Integer weight i64 [B, V] of every entry that the plan keeps, 0 for the others; a row at fault is all 0.

    Divided by their row sum they are exactly the distribution that `sampling_draw` draws from.
    """
    return native_cpu.bind_sampling_masses(logits, plan, temperature, out)()


def sampling_weigh(
    logits: Tensor, plan: Tensor, token_ids: Tensor, temperature: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Weight of one token a row and the row's total: i64 [B, 2]; probability is their quotient."""
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
    """One token id a row, i64 [B], from 64 random bits a row; -1 where there is nothing to draw.

    Greedy rows give the lowest id of their maximum. `logits` may be read before or after `sampling_apply`; after it,
    without `temperature`. `excluded` i64 [B] takes one id out of each row first (-1: none).
    """
    return native_cpu.bind_sampling_draw(logits, plan, random_bits, temperature, excluded, out)()
