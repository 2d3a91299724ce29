"""One query row for each of many sequences, each over as many keys of its own cache row as it has: for `row_models`."""

from __future__ import annotations

import torch


def decode_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of ``query`` [B, Hq, D] over ``keys``, ``values`` [B, Hkv, L, D] up to ``positions`` int64 [B].

    Returns [B, Hq, D] in the type of ``query``. The caches are contiguous; D is a power of two of at least 16.
    """
    if query.is_cuda:
        from engine.training.decode_attention_triton import decode_attention_triton  # torch for CUDA brings triton

        return decode_attention_triton(query, keys, values, positions, scale)
    return decode_attention_plain(query, keys, values, positions, scale)


def decode_attention_plain(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """In plain torch: products over whole cache rows."""
    rows, heads, dim = query.shape
    grouped = query.view(rows, keys.shape[1], -1, dim)
    scores = (grouped @ keys.mT).float() * scale
    later = (torch.arange(keys.shape[2], device=query.device) > positions[:, None])[:, None, None]
    weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1).to(query.dtype)
    return (weights @ values).view(rows, heads, dim)
