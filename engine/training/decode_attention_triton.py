"""`decode_attention` on a GPU: what a sequence does not hold is not read. Needs triton, which torch for CUDA brings."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 64
_SMALLEST_PRODUCT = 16  # rows of a `tl.dot`; those after the group are nothing


def decode_attention_triton(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, scale: float
) -> torch.Tensor:
    """See `decode_attention`."""
    rows, heads, dim = query.shape
    kv_heads, length = keys.shape[1:3]
    query = query.contiguous()
    out = torch.empty_like(query)
    _kernel[(rows, kv_heads)](
        query,
        keys,
        values,
        positions,
        out,
        length,
        scale,
        GROUP=heads // kv_heads,
        PADDED=_SMALLEST_PRODUCT,
        DIM=dim,
        TILE=_TILE,
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    length: tl.tensor,
    scale: tl.tensor,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A program for each sequence and KV head: a running softmax over tiles of its keys."""
    head = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    last = tl.load(positions + tl.program_id(0)).to(tl.int32)
    member, column, key = tl.arange(0, PADDED), tl.arange(0, DIM), tl.arange(0, TILE)
    row_at = (head * GROUP + member[:, None]) * DIM + column[None, :]
    rows = tl.load(query + row_at, mask=member[:, None] < GROUP, other=0.0)
    base = head.to(tl.int64) * length * DIM
    largest = tl.full((PADDED,), -float("inf"), tl.float32)
    total = tl.zeros((PADDED,), tl.float32)
    mixed = tl.zeros((PADDED, DIM), tl.float32)
    for start in range(0, last + 1, TILE):
        at = start + key
        held = at <= last
        tile_at = base + at[:, None] * DIM + column[None, :]
        k = tl.load(keys + tile_at, mask=held[:, None], other=0.0)
        v = tl.load(values + tile_at, mask=held[:, None], other=0.0)
        scores = tl.where(held[None, :], tl.dot(rows, tl.trans(k)) * scale, -float("inf"))
        risen = tl.maximum(largest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - risen[:, None]), tl.exp(largest - risen)
        total = total * kept + tl.sum(weights, 1)
        mixed = mixed * kept[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = risen
    tl.store(out + row_at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=member[:, None] < GROUP)
