"""Writing keys and values into the paged cache on CUDA, with and without RoPE."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

import torch

from native.cuda_bindings import check, faults, launch
from native.cuda_bindings.fp8 import KV_FORMATS


class _Args(ctypes.Structure):
    """KvStoreArgs of native/cuda/kv_store.h, field for field."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "cos_sin", "position", "slot_mapping")),
        *((name, c_void_p) for name in ("q_out", "k_cache", "v_cache", "fault")),
        *((name, c_int64) for name in ("tokens", "query_heads", "kv_heads", "head_dim", "rotary", "positions")),
        *((name, c_int64) for name in ("num_blocks", "block_size", "q_token_stride", "q_head_stride")),
        *((name, c_int64) for name in ("k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride")),
        *((name, c_int64) for name in ("q_out_token_stride", "q_out_head_stride")),
        *((name, c_int64) for name in ("k_cache_block_stride", "k_cache_token_stride", "k_cache_head_stride")),
        *((name, c_int64) for name in ("v_cache_block_stride", "v_cache_token_stride", "v_cache_head_stride")),
        ("interleaved", c_int64),
        ("kv_format", c_int64),
        ("k_scale", c_double),
        ("v_scale", c_double),
    )


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write keys and values into their cache slots; FP8 caches get encode(x / scale), nearest even and saturating.

    A slot that is neither -1 (PAD) nor in the cache writes nothing and is raised by `faults.raise_on_fault`.

    Args:
        k, v: float16 [T, Hkv, D], D even and at most 256; tokens and heads may be strided.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], float16, float8_e4m3fn or float8_e5m2; may be strided.
        slot_mapping: int64 [T]; slot = block * block_size + offset.
        k_scale, v_scale: positive.
    """
    check.tensor("k", k, torch.float16, (None, None, None), contiguous=False)
    tokens, kv_heads, head_dim = k.shape
    check.tensor("v", v, torch.float16, (tokens, kv_heads, head_dim), like=k, contiguous=False)
    _check_cache(k_cache, v_cache, kv_heads, head_dim, k)
    check.tensor("slot_mapping", slot_mapping, torch.int64, (tokens,), like=k)
    check.positive("k_scale", k_scale)
    check.positive("v_scale", v_scale)
    _run(None, k, v, None, None, slot_mapping, None, k_cache, v_cache, False, k_scale, v_scale)


def rope_store_kv(
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
) -> torch.Tensor:
    """Rotate queries and keys, and write keys and values into their cache slots, in one launch.

    Rotation is in float32 with one rounding to float16; an FP8 cache gets the code of that float16.

    Args:
        qkv: float16 [T, (Hq + 2 Hkv) D]: query heads, key heads, value heads; rows may be strided.
        cos_sin: float32 [P, R / 2, 2]; R <= D dimensions of a head turn, the rest are copied.
        positions: int32 [T], each in 0..P-1 (another one writes nothing; see `faults.raise_on_fault`).
        k_cache, v_cache, slot_mapping, k_scale, v_scale: as in `store_kv`.
        interleaved: pairs are (2i, 2i + 1) when true, (i, i + R / 2) otherwise.
        q_out: float16 [T, Hq, D].

    Returns:
        The rotated queries, float16 [T, Hq, D].
    """
    check.tensor("qkv", qkv, torch.float16, (None, None), contiguous=False)
    tokens, width = qkv.shape
    kv_heads, head_dim = (k_cache.shape[2], k_cache.shape[3]) if k_cache.dim() == 4 else (0, 0)
    _check_cache(k_cache, v_cache, kv_heads, head_dim, qkv)
    query_heads = width // head_dim - 2 * kv_heads
    if width % head_dim or query_heads < 1:
        raise ValueError(
            f"qkv: saw {width} columns for {kv_heads} KV heads of {head_dim}, need (Hq + {2 * kv_heads}) * {head_dim}"
        )
    check.tensor("cos_sin", cos_sin, torch.float32, (None, None, 2), like=qkv)
    if 2 * cos_sin.shape[1] > head_dim:
        raise ValueError(f"cos_sin: saw {2 * cos_sin.shape[1]} turning dimensions, a head has {head_dim}")
    check.tensor("positions", positions, torch.int32, (tokens,), like=qkv)
    check.tensor("slot_mapping", slot_mapping, torch.int64, (tokens,), like=qkv)
    check.positive("k_scale", k_scale)
    check.positive("v_scale", v_scale)
    q_out = check.output("q_out", q_out, torch.float16, (tokens, query_heads, head_dim), qkv)
    row = qkv.stride(0) if tokens > 1 else width
    heads = qkv.as_strided((tokens, query_heads + 2 * kv_heads, head_dim), (row, head_dim, 1))
    q = heads[:, :query_heads]
    k = heads[:, query_heads : query_heads + kv_heads]
    v = heads[:, query_heads + kv_heads :]
    _run(q, k, v, cos_sin, positions, slot_mapping, q_out, k_cache, v_cache, interleaved, k_scale, v_scale)
    return q_out


def _run(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor | None,
    slot_mapping: torch.Tensor,
    q_out: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    interleaved: bool,
    k_scale: float,
    v_scale: float,
) -> None:
    tokens, kv_heads, head_dim = k.shape
    if tokens == 0:
        return
    num_blocks, block_size = k_cache.shape[:2]
    args = _Args(
        *(None if t is None else t.data_ptr() for t in (q, k, v, cos_sin, positions, slot_mapping, q_out)),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        faults.buffer(k.device).data_ptr(),
        *(tokens, 0 if q is None else q.shape[1], kv_heads, head_dim),
        *((0, 0) if cos_sin is None else (2 * cos_sin.shape[1], cos_sin.shape[0])),
        *(num_blocks, block_size),
        *((0, 0) if q is None else q.stride()[:2]),
        *k.stride()[:2],
        *v.stride()[:2],
        *((0, 0) if q_out is None else q_out.stride()[:2]),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        int(interleaved),
        KV_FORMATS[k_cache.dtype],
        k_scale,
        v_scale,
    )
    launch.run("kv_store", 1, k.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))


def _check_cache(
    k_cache: torch.Tensor, v_cache: torch.Tensor, kv_heads: int, head_dim: int, like: torch.Tensor
) -> None:
    shape = (None, None, kv_heads, head_dim)
    check.tensor("k_cache", k_cache, tuple(KV_FORMATS), shape, like=like, contiguous=False)
    check.tensor("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape), like=like, contiguous=False)
    if kv_heads < 1 or not 0 < head_dim <= 256 or head_dim % 2:
        raise ValueError(f"k_cache: saw {kv_heads} heads of {head_dim}, need at least one, of an even size up to 256")
