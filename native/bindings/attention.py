"""Attention over the paged cache."""

from __future__ import annotations

import ctypes
import math

import torch

from native.bindings import check
from native.bindings.call import Args, Call
from native.bindings.kv_store import KV_CODES, check_caches


class PagedAttention(Args):
    OP = "paged_attention_cpu"
    CAPABILITY = 3
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("sequences", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("q_heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("kv_code", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("k_strides", ctypes.c_int64 * 3),
        ("v_strides", ctypes.c_int64 * 3),
        ("causal", ctypes.c_int64),
        ("left", ctypes.c_int64),
        ("right", ctypes.c_int64),
        ("partition", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("v_scale", ctypes.c_double),
    )


def bind_paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    partition: int | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.functional.paged_attention`."""
    num_blocks, block_size, kv_heads, head_dim = check_caches(k_cache, v_cache)
    check.tensor("q", q, torch.float32, (None, None, head_dim))
    t, q_heads, _ = q.shape
    if q_heads == 0 or q_heads % kv_heads:
        raise ValueError(f"q: saw {q_heads} query heads, need a multiple of the {kv_heads} KV heads")
    check.tensor("seq_lens", seq_lens, torch.int32, (None,))
    sequences = seq_lens.shape[0]
    check.tensor("block_table", block_table, torch.int32, (sequences, None), contiguous=False)
    check.tensor("query_start", query_start, torch.int32, (sequences + 1,))
    if not math.isfinite(scale):
        raise ValueError(f"scale: saw {scale}, need a finite number")
    check.positive("k_scale", k_scale)
    check.positive("v_scale", v_scale)
    left, right = window
    if left < -1 or right < -1:
        raise ValueError(f"window: saw {window}, need two numbers >= -1 (-1: no limit)")
    if not causal and left >= 0 and right < 0:
        right = left  # a block that sees both ways sees as far ahead as behind
    if partition is not None and (partition < 16 or partition % 16):
        raise ValueError(f"partition: saw {partition} keys, need a positive multiple of 16")
    out = check.output("out", out, torch.float32, (t, q_heads, head_dim), contiguous=True)
    args = PagedAttention(
        q=q.data_ptr(),
        k_cache=k_cache.data_ptr(),
        v_cache=v_cache.data_ptr(),
        block_table=block_table.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        query_start=query_start.data_ptr(),
        out=out.data_ptr(),
        t=t,
        sequences=sequences,
        max_blocks=block_table.shape[1],
        table_stride=block_table.stride(0),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_code=KV_CODES[k_cache.dtype],
        num_blocks=num_blocks,
        block_size=block_size,
        k_strides=k_cache.stride()[:3],
        v_strides=v_cache.stride()[:3],
        causal=int(causal),
        left=left,
        right=right,
        partition=partition or 0,
        scale=scale * k_scale,
        v_scale=v_scale,
    )
    return Call(args, out, (q, k_cache, v_cache, block_table, seq_lens, query_start))
