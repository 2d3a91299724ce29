"""FP32 logits on CUDA: of the whole vocabulary, and of chosen candidates."""

from __future__ import annotations

from ctypes import c_int, c_int64

import torch

from native.cuda_bindings import check, faults, launch
from native.cuda_bindings.linear import linear_f16


def dense_logits(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [M, V] logits of float16 ``x`` [M, K] and ``weight`` [V, K]: never rounded to float16."""
    return linear_f16(x, weight, out=out, out_dtype=torch.float32)


def candidate_logits(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 [M, C] logits of the vocabulary rows ``ids``: float32 products and sums of the original float16 rows.

    An id that is no row gives -inf and is raised by `faults.raise_on_fault`.

    Args:
        x: float16 [M, K], rows on 16 bytes.
        weight: float16 [V, K], rows on 16 bytes; K a multiple of 8.
        ids: int64 [M, C], rows may be strided.
        out: float32 [M, C], rows may be strided.
    """
    check.tensor("x", x, torch.float16, (None, None), contiguous=False)
    m, k = x.shape
    check.tensor("weight", weight, torch.float16, (None, k), like=x, contiguous=False)
    check.tensor("ids", ids, torch.int64, (m, None), like=x, contiguous=False)
    if k == 0 or k % 8:
        raise ValueError(f"x: saw K = {k}, need a positive multiple of 8")
    check.aligned("x", x, 8)
    check.aligned("weight", weight, 8)
    candidates = ids.shape[1]
    out = check.output("out", out, torch.float32, (m, candidates), x)
    if out.numel() == 0:
        return out
    rows = (x, c_int64(x.stride(0)), c_int64(m), weight, c_int64(weight.stride(0)), c_int64(weight.shape[0]))
    chosen = (ids, c_int64(ids.stride(0)), c_int(candidates), out, c_int64(out.stride(0)), c_int(k))
    launch.run("candidate_logits", 1, x.device, (*rows, *chosen, faults.buffer(x.device)))
    return out
