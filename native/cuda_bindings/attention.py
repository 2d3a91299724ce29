"""Paged attention on CUDA: decode, grouped verification and prefill through one entry."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass

import torch

from native.cuda_bindings import check, faults, launch
from native.cuda_bindings.fp8 import KV_FORMATS

MAX_SPLIT_QUERIES = 64  # sequences with more query rows are not split along the keys
TILE_KEYS = 64  # keys that a block works on at a time, at most
LEAST_CHUNK = 128  # keys of a partition; it grows as a sequence outgrows the most partitions
LEAST_PARTITIONS, MAX_PARTITIONS = 8, 128  # bounds of the most partitions of a sequence
# Numbers in 16 bytes: what a head's row must start on and be a multiple of.
KV_VECTOR = {torch.float16: 8, torch.float8_e4m3fn: 16, torch.float8_e5m2: 16}
FULL_WINDOW = (-1, -1)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How a call is cut. It depends on shapes only, never on lengths, so a captured call serves every length.

    ``row_tiles``: 16-row tiles of a block (1, 3 or 4). ``partitions``: most partitions of a sequence. ``split_rows``:
    query rows that may belong to split sequences. ``workspace_bytes``: partial results.
    """

    row_tiles: int
    partitions: int
    chunk: int
    split_rows: int
    workspace_bytes: int


def plan_attention(
    tokens: int,
    batch: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    capacity: int,
    multiprocessors: int,
    partition: int | None = None,
) -> AttentionPlan:
    """The plan for ``tokens`` query rows of ``batch`` sequences that hold at most ``capacity`` keys each.

    ``partition``: least keys of a partition, a multiple of 64; None: 128.
    """
    chunk = LEAST_CHUNK if partition is None else partition
    if chunk < TILE_KEYS or chunk % TILE_KEYS:
        raise ValueError(f"partition: saw {partition}, need a positive multiple of {TILE_KEYS}")
    usual_rows = math.ceil(tokens / max(1, batch)) * (query_heads // kv_heads)
    row_tiles = 1 if usual_rows <= 16 else 3 if usual_rows <= 48 and head_dim > 128 else 4
    # One long sequence fills the card, two blocks a multiprocessor. A constant of model and card, not of the batch: a
    # row's bits must not depend on who else is decoded.
    most = min(MAX_PARTITIONS, max(LEAST_PARTITIONS, 2 * multiprocessors // kv_heads))
    partitions = min(most, max(1, math.ceil(capacity / chunk)))
    split_rows = min(tokens, batch * MAX_SPLIT_QUERIES) if partitions > 1 else 0
    workspace = 4 * split_rows * query_heads * partitions * (head_dim + 2)
    return AttentionPlan(row_tiles, partitions, chunk, split_rows, workspace)


class _Args(ctypes.Structure):
    """PagedAttentionArgs of native/cuda/paged_attention.h, field for field."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "block_table", "seq_lens", "query_start", "anchor_lens")),
        *((name, c_void_p) for name in ("out", "partial_out", "partial_stats", "fault")),
        *((name, c_int64) for name in ("tokens", "batch", "query_heads", "kv_heads", "head_dim")),
        *((name, c_int64) for name in ("num_blocks", "block_size", "max_blocks", "table_stride")),
        *((name, c_int64) for name in ("q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride")),
        *((name, c_int64) for name in ("k_block_stride", "k_token_stride", "k_head_stride")),
        *((name, c_int64) for name in ("v_block_stride", "v_token_stride", "v_head_stride")),
        *((name, c_int64) for name in ("partitions", "chunk", "causal", "window_left", "window_right")),
        ("anchored_window", c_int64),
        ("scale", c_double),
        ("v_scale", c_double),
        ("kv_format", c_int64),
        ("row_tiles", c_int64),
    )


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int, int] = FULL_WINDOW,
    anchor_lens: torch.Tensor | None = None,
    anchored_window: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    partition: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention over a paged cache: decode (one row per sequence), verification (K + 1 rows) and prefill alike.

    The query rows of a sequence are its LAST positions: row i of q_len stands at seq_len - q_len + i; rows of a padded
    sequence (length 0) and rows that see no key give zeros. Nothing beyond ``seq_lens`` counts. All rows of a GQA group
    and up to 64 (row, head) pairs share one pass over the keys. Lengths and tables are read on the device; a length
    beyond the table or a block that does not exist is recorded there and raised by `faults.raise_on_fault`.

    A row's bits depend on nothing but its own query and keys, as long as its sequence has at most 64 query rows: a row
    that is verified has the bits of the same row decoded.

    Args:
        q: float16 [T, Hq, D], D a multiple of 8 up to 256 (64, 128 and 256 waste nothing); rows on 16 bytes.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], float16, float8_e4m3fn or float8_e5m2; strided views are
            fine if D is contiguous and rows start on 16 bytes. Any block size. Hq is a multiple of Hkv.
        block_table: int32 [B, max_blocks]; rows may be strided.
        seq_lens: int32 [B].
        query_start: int32 [B + 1], cumulative, from 0 to T.
        scale: factor of the scores.
        causal: a row sees keys up to its own position.
        window: (left, right) keys seen beside the own position; -1 is no limit. Non-causal with only a left limit is
            symmetric.
        anchor_lens: int32 [B] or None; with it, a causal row sees key < anchor_len or position - key < anchored_window.
            float16 cache only.
        k_scale, v_scale: what a decoded key or value is multiplied by; positive.
        partition: least keys of a partition, a multiple of 64; more for a sequence that would need more than the most
            partitions. None: 128.
        out: float16 [T, Hq, D], rows on 8 bytes.
    """
    check.tensor("q", q, torch.float16, (None, None, None), contiguous=False)
    tokens, query_heads, head_dim = q.shape
    check.tensor("k_cache", k_cache, tuple(KV_FORMATS), (None, None, None, head_dim), like=q, contiguous=False)
    check.tensor("v_cache", v_cache, k_cache.dtype, tuple(k_cache.shape), like=q, contiguous=False)
    num_blocks, block_size, kv_heads, _ = k_cache.shape
    check.tensor("block_table", block_table, torch.int32, (None, None), like=q, contiguous=False)
    batch, max_blocks = block_table.shape
    check.tensor("seq_lens", seq_lens, torch.int32, (batch,), like=q)
    check.tensor("query_start", query_start, torch.int32, (batch + 1,), like=q)
    _check_heads(q, k_cache, v_cache, query_heads, kv_heads, head_dim)
    left, right = _check_mask(causal, window, anchor_lens, anchored_window, k_cache.dtype)
    if anchor_lens is not None:
        check.tensor("anchor_lens", anchor_lens, torch.int32, (batch,), like=q)
    if not math.isfinite(scale):
        raise ValueError(f"scale: saw {scale}, need a finite number")
    check.positive("k_scale", k_scale)
    check.positive("v_scale", v_scale)
    if max_blocks * block_size > check.INT_MAX:
        raise ValueError(f"block_table: {max_blocks} blocks of {block_size} exceed {check.INT_MAX} keys per sequence")
    out = check.output("out", out, torch.float16, (tokens, query_heads, head_dim), q)
    check.aligned("out", out, 4)
    if tokens == 0:
        return out
    if batch == 0:
        raise ValueError(f"block_table: saw no sequences for {tokens} query rows")

    capacity = max_blocks * block_size
    plan = plan_attention(
        tokens, batch, query_heads, kv_heads, head_dim, capacity, launch.multiprocessors(q.device), partition
    )
    partial_out = torch.empty(
        max(1, plan.split_rows), query_heads, plan.partitions, head_dim, dtype=torch.float32, device=q.device
    )
    partial_stats = partial_out.new_empty(max(1, plan.split_rows), query_heads, plan.partitions, 2)
    args = _Args(
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        block_table.data_ptr(),
        seq_lens.data_ptr(),
        query_start.data_ptr(),
        None if anchor_lens is None else anchor_lens.data_ptr(),
        out.data_ptr(),
        partial_out.data_ptr(),
        partial_stats.data_ptr(),
        faults.buffer(q.device).data_ptr(),
        *(tokens, batch, query_heads, kv_heads, head_dim),
        *(num_blocks, block_size, max_blocks, block_table.stride(0)),
        *(q.stride(0), q.stride(1), out.stride(0), out.stride(1)),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *(plan.partitions, plan.chunk, int(causal), left, right),
        anchored_window,
        scale * k_scale,
        v_scale,
        KV_FORMATS[k_cache.dtype],
        plan.row_tiles,
    )
    launch.run("paged_attention", 1, q.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))
    return out


def _check_heads(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, query_heads: int, kv_heads: int, head_dim: int
) -> None:
    vector = KV_VECTOR[k_cache.dtype]
    if not 0 < head_dim <= 256 or head_dim % vector:
        raise ValueError(f"head_dim: saw {head_dim}, allowed are multiples of {vector} up to 256 for {k_cache.dtype}")
    if kv_heads == 0 or query_heads == 0 or query_heads % kv_heads:
        raise ValueError(f"q: saw {query_heads} query heads over {kv_heads} KV heads, need a positive multiple")
    check.aligned("q", q, 8)
    check.aligned("k_cache", k_cache, vector)
    check.aligned("v_cache", v_cache, vector)


def _check_mask(
    causal: bool,
    window: tuple[int, int],
    anchor_lens: torch.Tensor | None,
    anchored_window: int,
    cache: torch.dtype,
) -> tuple[int, int]:
    left, right = window
    if left < -1 or right < -1:
        raise ValueError(f"window: saw {window}, -1 (no limit) is the least")
    if anchored_window < 0:
        raise ValueError(f"anchored_window: saw {anchored_window}, need at least 0")
    if anchor_lens is not None and not causal:
        raise ValueError("anchor_lens: an anchored mask is causal, saw causal=False")
    if anchor_lens is not None and cache != torch.float16:
        raise ValueError(f"anchor_lens: saw a {cache} cache, an anchored mask needs torch.float16")
    if not causal and left >= 0 and right < 0:
        right = left
    return left, right
