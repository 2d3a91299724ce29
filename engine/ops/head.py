"""FP32 logits: of the whole vocabulary, and of chosen candidates.

Faces like those of `engine.ops.functional`, which re-exports them; the plain twins are in `engine.ops.reference`.
"""

from __future__ import annotations

import torch

from engine.ops.placement import on_cuda
from native import ops as native_ops
from native import ops_cuda


def dense_logits(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [M, V] logits, never rounded to float16.

    Args:
        x: float32 on the CPU, float16 on CUDA, [M, K]; rows may be strided.
        weight: float16 [V, K].
        out: float32 [M, V].
    """
    if on_cuda("linear_f16", x):
        return ops_cuda.dense_logits(x, weight, out=out)
    return native_ops.bind_linear_f16(x, weight, None, out)()


def candidate_logits(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 [M, C] logits of the vocabulary rows ``ids``, from the original rows of the head.

    On the CPU a candidate's logit has the bits of `dense_logits`, and an id that is no row raises ``ValueError``.

    Args:
        x: float32 on the CPU, float16 on CUDA, [M, K]; rows may be strided.
        weight: float16 [V, K] (float32 too on the CPU).
        ids: int64 [M, C]; rows may be strided.
        out: float32 [M, C].
    """
    if on_cuda("candidate_logits", x):
        return ops_cuda.candidate_logits(x, weight, ids, out=out)
    return native_ops.bind_candidate_logits(x, weight, ids, out)()
