"""Per-row cutoffs of a batch: the settings of its rows, and the plan made from them.

The tie rule itself is defined once, in `engine.ops.sampling_reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.ops import sampling as ops
from engine.ops.placement import upload_no_sync
from engine.ops.sampling import PlanColumn, RowFlag

if TYPE_CHECKING:
    from engine.request import SamplingParams

_REASONS = {
    RowFlag.NAN: "the logits contain NaN",
    RowFlag.POSITIVE_INFINITY: "the logits contain +inf",
    RowFlag.NOTHING_FINITE: "every logit is -inf: no token is allowed",
    RowFlag.BAD_PARAMETER: "temperature must be finite and 0 or above, top-p above 0 and at most 1",
}


@dataclass(frozen=True, slots=True, eq=False)
class RowSettings:
    """How each row of a batch is cut. Every row goes by its own numbers; None stands for "off in every row".

    ``temperature`` f32 [B] (0: greedy), ``top_k`` i32 [B] (0: off), ``top_p`` f32 [B] (1: off).
    """

    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device | None = None) -> RowSettings:
        """The settings of a batch whose row i belongs to a request with ``params[i]``."""
        return cls.from_lists(
            [one.temperature for one in params],
            [one.top_k for one in params],
            [one.top_p for one in params],
            device=device,
        )

    @classmethod
    def from_lists(
        cls,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        *,
        device: torch.device | None = None,
    ) -> RowSettings:
        """Tensors from plain numbers; a column that is off in every row stays None, which changes no bit."""
        return cls(
            temperature=_column(temperature, 1.0, torch.float32, device),
            top_k=_column(top_k, 0, torch.int32, device),
            top_p=_column(top_p, 1.0, torch.float32, device),
        )


def plan_cutoffs(logits: Tensor, settings: RowSettings) -> Tensor:
    """The plan of `logits` f32 [B, V], int32 [B, 4]; the logits are only read. Waits for nothing on a GPU."""
    return ops.sampling_plan(logits, settings.top_k, settings.top_p, settings.temperature)


def apply_cutoffs_inplace(logits: Tensor, settings: RowSettings, *, mask_value: float = -torch.inf) -> Tensor:
    """Divides `logits` f32 [B, V] by their temperatures and removes what the cutoffs remove, in place.

    Returns:
        The plan: the caller asks `row_faults` which rows may be used.
    """
    return ops.sampling_cut(logits, settings.top_k, settings.top_p, settings.temperature, mask_value=mask_value)


def row_faults(plan: Tensor) -> tuple[str | None, ...]:
    """Per row, why nothing may be sampled from it, or None. Reads the plan back: on a GPU this waits."""
    return plan_faults(plan.tolist())


def plan_faults(rows: Sequence[Sequence[int]]) -> tuple[str | None, ...]:
    """`row_faults` of a plan that was read already."""
    return tuple(_reason(RowFlag(row[PlanColumn.FLAGS])) for row in rows)


def _reason(flags: RowFlag) -> str | None:
    return next((reason for flag, reason in _REASONS.items() if flags & flag), None)


def _column(values: Sequence[float], off: float, dtype: torch.dtype, device: torch.device | None) -> Tensor | None:
    return None if all(value == off for value in values) else upload_no_sync(values, dtype, device)
