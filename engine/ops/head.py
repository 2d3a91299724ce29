"""FP32 logits: of the whole vocabulary, and of chosen candidates.

Faces like those of `engine.ops.functional`, which re-exports them; the plain twins are in `engine.ops.reference`.
"""

from __future__ import annotations

import torch

from engine.ops.placement import on_cuda
from engine.ops.sampling_reference import ordered_keys
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


def best_ids_on_device(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of the ``count`` largest of each row of ``logits`` f32 [M, V], int64 [M, count].

    By descending value, lower ids first among equals; -0 and +0 are equal, NaN comes before every number. By one
    integer a token, the value's key and then the id: fixed shapes and no row to the host, so it may be captured.
    """
    width = logits.shape[1]
    places = torch.arange(width, device=logits.device)
    return width - 1 - torch.topk(ordered_keys(logits) * width + (width - 1 - places), count, dim=1).values % width
