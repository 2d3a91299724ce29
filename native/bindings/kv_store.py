"""Writing keys and values into the paged cache, with and without the rotary embedding."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call

# The number a kernel knows a cache's format by.
KV_CODES = {torch.float32: 0, torch.float16: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}


class _Cache(ctypes.Structure):
    """CacheArgs of native/cpu/store_kv.cpp, field for field."""

    _fields_ = (
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("kv_code", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("k_strides", ctypes.c_int64 * 3),
        ("v_strides", ctypes.c_int64 * 3),
        ("k_scale", ctypes.c_double),
        ("v_scale", ctypes.c_double),
    )


class StoreKv(Args):
    OP = "store_kv_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("k_strides", ctypes.c_int64 * 2),
        ("v_strides", ctypes.c_int64 * 2),
        ("cache", _Cache),
    )


class RopeStoreKv(Args):
    OP = "rope_store_kv_cpu"
    CAPABILITY = 2
    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("cos_sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("q_out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("q_heads", ctypes.c_int64),
        ("half", ctypes.c_int64),
        ("table_rows", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("qkv_stride", ctypes.c_int64),
        ("cache", _Cache),
    )


def bind_store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Call:
    """See `engine.ops.functional.store_kv`. The call's ``out`` is ``k_cache``."""
    _, _, kv_heads, head_dim = check_caches(k_cache, v_cache)
    check.tensor("k", k, torch.float32, (None, kv_heads, head_dim), contiguous=False)
    check.tensor("v", v, torch.float32, tuple(k.shape), contiguous=False)
    cache = _cache(k_cache, v_cache, slot_mapping, k.shape[0], k_scale, v_scale)
    args = StoreKv(
        k=k.data_ptr(),
        v=v.data_ptr(),
        t=k.shape[0],
        k_strides=k.stride()[:2],
        v_strides=v.stride()[:2],
        cache=cache,
    )
    return Call(args, k_cache, (k, v, v_cache, slot_mapping))


def bind_rope_store_kv(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    q_out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.functional.rope_store_kv`."""
    _, _, kv_heads, head_dim = check_caches(k_cache, v_cache)
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
        raise ValueError(f"cos_sin: saw {half} angles per position, allowed 1..{head_dim // 2} for heads of {head_dim}")
    check.tensor("positions", positions, torch.int32, (t,))
    q_out = check.output("q_out", q_out, torch.float32, (t, q_heads, head_dim), contiguous=True)
    args = RopeStoreKv(
        qkv=qkv.data_ptr(),
        cos_sin=cos_sin.data_ptr(),
        positions=positions.data_ptr(),
        q_out=q_out.data_ptr(),
        t=t,
        q_heads=q_heads,
        half=half,
        table_rows=cos_sin.shape[0],
        interleaved=int(interleaved),
        qkv_stride=qkv.stride(0),
        cache=_cache(k_cache, v_cache, slot_mapping, t, k_scale, v_scale),
    )
    return Call(args, q_out, (qkv, cos_sin, positions, k_cache, v_cache, slot_mapping))


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor) -> tuple[int, int, int, int]:
    """num_blocks, block_size, Hkv and D of two caches that an op can use."""
    check.tensor("k_cache", k_cache, tuple(KV_CODES), (None, None, None, None), contiguous=False)
    check.tensor("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape), contiguous=False)
    num_blocks, block_size, kv_heads, head_dim = k_cache.shape
    if block_size == 0 or kv_heads == 0:
        raise ValueError(f"k_cache: saw shape {tuple(k_cache.shape)}, need block_size >= 1 and Hkv >= 1")
    if head_dim == 0 or head_dim % 16 or head_dim > 256:
        raise ValueError(f"k_cache: saw head dim {head_dim}, allowed: multiples of 16 up to 256")
    return num_blocks, block_size, kv_heads, head_dim


def _cache(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    tokens: int,
    k_scale: float,
    v_scale: float,
) -> _Cache:
    check.tensor("slot_mapping", slot_mapping, torch.int64, (tokens,))
    check.positive("k_scale", k_scale)
    check.positive("v_scale", v_scale)
    if k_cache.element_size() > 1 and (k_scale, v_scale) != (1.0, 1.0):
        raise ValueError(
            f"k_scale, v_scale: saw {k_scale}, {v_scale} for a {k_cache.dtype} cache, need 1.0: it has none"
        )
    num_blocks, block_size, kv_heads, head_dim = k_cache.shape
    return _Cache(
        k_cache=k_cache.data_ptr(),
        v_cache=v_cache.data_ptr(),
        slots=slot_mapping.data_ptr(),
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_code=KV_CODES[k_cache.dtype],
        num_blocks=num_blocks,
        block_size=block_size,
        k_strides=k_cache.stride()[:3],
        v_strides=v_cache.stride()[:3],
        k_scale=k_scale,
        v_scale=v_scale,
    )
