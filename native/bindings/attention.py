"""Rotary embedding with the KV write, and attention over the paged cache."""

from __future__ import annotations

import ctypes
import math

import torch

from native.bindings import check
from native.bindings.call import Args, Call

KV_DTYPES = (torch.float32, torch.float16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
_KV_CODE = {torch.float32: 0, torch.float16: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}


class RopeStoreKv(Args):
    OP = "rope_store_kv_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("q_out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("q_heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("half", ctypes.c_int64),
        ("table_rows", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("qkv_stride", ctypes.c_int64),
        ("kv_code", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("k_strides", ctypes.c_int64 * 3),
        ("v_strides", ctypes.c_int64 * 3),
    )


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


def bind_rope_store_kv(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool,
    q_out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.functional.rope_store_kv`."""
    _, block_size, kv_heads, head_dim = _check_caches(k_cache, v_cache)
    check.tensor("qkv", qkv, torch.float32, (None, None), contiguous=False)
    t, width = qkv.shape
    q_heads = width // head_dim - 2 * kv_heads
    if width % head_dim or q_heads < 1:
        raise ValueError(
            f"qkv: saw {width} columns for {kv_heads} KV heads of {head_dim}, "
            f"need (Hq + {2 * kv_heads}) * {head_dim} with Hq >= 1"
        )
    check.tensor("cos_sin", cos_sin, torch.float32, (None, None, 2))
    half = cos_sin.shape[1]
    if not 1 <= half <= head_dim // 2:
        raise ValueError(f"cos_sin: saw {half} angles a position, allowed 1..{head_dim // 2} for heads of {head_dim}")
    check.tensor("positions", positions, torch.int32, (t,))
    check.tensor("slot_mapping", slot_mapping, torch.int64, (t,))
    q_out = check.output("q_out", q_out, torch.float32, (t, q_heads, head_dim), contiguous=True)
    args = RopeStoreKv(
        qkv=qkv.data_ptr(),
        cos_sin=cos_sin.data_ptr(),
        positions=positions.data_ptr(),
        k_cache=k_cache.data_ptr(),
        v_cache=v_cache.data_ptr(),
        slots=slot_mapping.data_ptr(),
        q_out=q_out.data_ptr(),
        t=t,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        half=half,
        table_rows=cos_sin.shape[0],
        interleaved=int(interleaved),
        qkv_stride=qkv.stride(0),
        kv_code=_KV_CODE[k_cache.dtype],
        num_blocks=k_cache.shape[0],
        block_size=block_size,
        k_strides=k_cache.stride()[:3],
        v_strides=v_cache.stride()[:3],
    )
    return Call(args, q_out, (qkv, cos_sin, positions, k_cache, v_cache, slot_mapping))


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
    num_blocks, block_size, kv_heads, head_dim = _check_caches(k_cache, v_cache, KV_DTYPES + FP8_DTYPES)
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
        kv_code=_KV_CODE[k_cache.dtype],
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


def _check_caches(
    k_cache: torch.Tensor, v_cache: torch.Tensor, dtypes: tuple[torch.dtype, ...] = KV_DTYPES
) -> tuple[int, int, int, int]:
    check.tensor("k_cache", k_cache, dtypes, (None, None, None, None), contiguous=False)
    check.tensor("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape), contiguous=False)
    num_blocks, block_size, kv_heads, head_dim = k_cache.shape
    if block_size == 0 or kv_heads == 0:
        raise ValueError(f"k_cache: saw shape {tuple(k_cache.shape)}, need block_size >= 1 and Hkv >= 1")
    if head_dim == 0 or head_dim % 16 or head_dim > 256:
        raise ValueError(f"k_cache: saw head dim {head_dim}, allowed: multiples of 16 up to 256")
    return num_blocks, block_size, kv_heads, head_dim
