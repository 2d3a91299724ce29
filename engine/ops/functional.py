"""The ops of the engine: one documented function each, native underneath, a plain twin in `engine.ops.reference`.

Conventions of every op:

- Activations are float32 on the CPU and float16 on CUDA: where float32 is said of them below, it is float16 there.
- ``out=`` is optional; where given, it is written and returned.
- A wrong dtype, shape, stride or alignment, an index out of range or a library that is too old raises ``ValueError`` or
  ``RuntimeError`` with what was seen and what is allowed. Nothing falls back to another implementation.
- On the CPU every result has the same bits whatever the number of threads, the vector width of the machine and the
  number of rows in the batch.
"""

from __future__ import annotations

import torch

from engine.ops.gdn import gdn_chunk, gdn_conv, gdn_gated_rms_norm, gdn_gates, gdn_recurrent
from engine.ops.head import candidate_logits, dense_logits
from engine.ops.kv_codec import fp8_decode, fp8_encode, store_kv
from engine.ops.packed import PackedQ4_1, PackedQ8_0, pack_q4_1, pack_q8_0
from engine.ops.placement import on_cuda
from engine.ops.reference import FULL_WINDOW, Weight
from native import ops as native_ops
from native import ops_cuda
from native.cuda_bindings.packed import FEW_ROWS, PackedInt4, PackedNvfp4, pack_awq, pack_int4, pack_nvfp4

__all__ = [
    "FEW_ROWS",
    "FULL_WINDOW",
    "PackedInt4",
    "PackedNvfp4",
    "PackedQ4_1",
    "PackedQ8_0",
    "Weight",
    "bind_linear",
    "bind_linear_few_rows",
    "candidate_logits",
    "cuda_linear",
    "dense_logits",
    "embedding",
    "fp8_decode",
    "fp8_encode",
    "gdn_chunk",
    "gdn_conv",
    "gdn_gated_rms_norm",
    "gdn_gates",
    "gdn_recurrent",
    "linear",
    "linear_few_rows",
    "pack_awq",
    "pack_int4",
    "pack_nvfp4",
    "pack_q4_1",
    "pack_q8_0",
    "paged_attention",
    "rms_norm",
    "rope_store_kv",
    "silu_mul",
    "store_kv",
]


def embedding(ids: torch.Tensor, weight: PackedQ8_0 | torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Look up rows of the embedding.

    Args:
        ids: int32 or int64 [T], each in 0..V-1.
        weight: PackedQ8_0 or float32/float16 tensor [V, H].
        out: float32 [T, H].

    Returns:
        float32 [T, H].
    """
    runs_on_cuda = on_cuda("embedding_q8_0" if isinstance(weight, PackedQ8_0) else "embedding_dense", ids)
    if isinstance(weight, PackedQ8_0):
        if runs_on_cuda:
            return ops_cuda.embedding_q8_0(ids, weight.data, weight.n, out=out)
        return native_ops.bind_embedding_q8_0(ids, weight.data, weight.n, out)()
    if runs_on_cuda:
        return ops_cuda.embedding_dense(ids, weight, out=out)
    return native_ops.bind_embedding_dense(ids, weight, out)()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight for each row.

    Args:
        x: [T, H], float32; rows may be strided, the last dimension is contiguous.
        weight: float32 [H].
        eps: positive, inside the square root.
        out: like ``x``; may be ``x``.
    """
    if on_cuda("rms_norm", x):
        return ops_cuda.rms_norm(x, weight, eps, out=out)
    return native_ops.bind_rms_norm(x, weight, eps, out)()


def linear(
    x: torch.Tensor, weight: Weight, *, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ weight.T (+ residual).

    On the CPU a packed weight meets activations in 16-bit fixed point: one power-of-two scale for each 32 inputs, so an
    input is off by at most 2^-15 of the largest of its 32, and every float16 activation within 2^-4 of it is exact. The
    sums over a group are exact integers, whatever their order; a group below 2^-112 counts as zero, one with a value
    that is not finite makes its row NaN. Dense weights are multiplied in float32.

    Args:
        x: float32 [M, K], rows may be strided.
        weight: PackedQ4_1, PackedQ8_0, PackedInt4, PackedNvfp4, or a float32 or float16 tensor [N, K].
        residual: float32 [M, N], added last; may be ``out``.
        out: float32 [M, N].

    Returns:
        float32 [M, N] of the logical width, whatever the padding. A row's bits do not depend on M.
    """
    if on_cuda(_LINEAR_OPS.get(type(weight), "linear_f16"), x):
        return cuda_linear(x, weight, residual=residual, out=out)
    return bind_linear(x, weight, residual=residual, out=out)()


def linear_few_rows(
    x: torch.Tensor, weight: PackedNvfp4, *, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """`linear` with an NVFP4 weight and at most `FEW_ROWS` rows, by a kernel that asks for weights further ahead.

    The same bits as `linear`. Raises ``ValueError`` for more rows.
    """
    if on_cuda("linear_nvfp4_small", x):
        return ops_cuda.linear_nvfp4(x, weight, residual=residual, out=out, few_rows=True)
    return bind_linear_few_rows(x, weight, residual=residual, out=out)()


def bind_linear_few_rows(
    x: torch.Tensor, weight: PackedNvfp4, *, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> native_ops.Call:
    """`linear_few_rows` on the CPU bound to its buffers."""
    return native_ops.bind_linear_nvfp4(x, weight, residual, out, few_rows=True)


_LINEAR_OPS: dict[type, str] = {
    PackedQ4_1: "linear_q4_1",
    PackedQ8_0: "linear_q8_0",
    PackedInt4: "linear_int4",
    PackedNvfp4: "linear_nvfp4",
}


def cuda_linear(
    x: torch.Tensor,
    weight: Weight,
    *,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """`linear` on CUDA for float16 ``x``: float32 sums, rounded once to ``out_dtype`` (float16 or float32)."""
    if isinstance(weight, PackedQ4_1):
        return ops_cuda.linear_q4_1(x, weight.data, weight.n, residual=residual, out=out, out_dtype=out_dtype)
    if isinstance(weight, PackedQ8_0):
        return ops_cuda.linear_q8_0(x, weight.data, weight.n, residual=residual, out=out, out_dtype=out_dtype)
    if isinstance(weight, PackedInt4):
        return ops_cuda.linear_int4(x, weight, residual=residual, out=out, out_dtype=out_dtype)
    if isinstance(weight, PackedNvfp4):
        return ops_cuda.linear_nvfp4(x, weight, residual=residual, out=out, out_dtype=out_dtype)
    return ops_cuda.linear_f16(x, weight, residual=residual, out=out, out_dtype=out_dtype)


def bind_linear(
    x: torch.Tensor, weight: Weight, *, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> native_ops.Call:
    """`linear` on the CPU bound to its buffers, for a runner that calls it every step."""
    if isinstance(weight, PackedQ4_1):
        return native_ops.bind_linear_q4_1(x, weight.data, weight.n, residual, out)
    if isinstance(weight, PackedQ8_0):
        return native_ops.bind_linear_q8_0(x, weight.data, weight.n, residual, out)
    if isinstance(weight, PackedInt4):
        return native_ops.bind_linear_int4(x, weight, residual, out)
    if isinstance(weight, PackedNvfp4):
        return native_ops.bind_linear_nvfp4(x, weight, residual, out)
    if weight.dtype == torch.float16:
        return native_ops.bind_linear_f16(x, weight, residual, out)
    return native_ops.bind_linear_f32(x, weight, residual, out)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """SwiGLU: silu(gate) * up.

    Args:
        gate_up: float32 [M, 2 I], gate in the first half of a row and up in the second.
        out: float32 [M, I].
    """
    if on_cuda("silu_mul", gate_up):
        return ops_cuda.silu_mul(gate_up, out=out)
    return native_ops.bind_silu_mul(gate_up, out)()


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
    """Rotate queries and keys, and write keys and values into their cache slots.

    Args:
        qkv: float32 [T, (Hq + 2 Hkv) D]: query heads, key heads, value heads.
        cos_sin: float32 [P, R / 2, 2]; R <= D dimensions of a head turn, the rest are copied.
        positions: int32 [T], each in 0..P-1.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], float32 (CPU alone), float16, float8_e4m3fn or float8_e5m2;
            strided views are fine, D is contiguous. FP8 gets the code of x / scale, nearest even and saturating.
        slot_mapping: int64 [T]; slot = block * block_size + offset, -1 (PAD) is not written.
        interleaved: pairs are (2i, 2i + 1) when true, (i, i + R / 2) otherwise.
        k_scale, v_scale: positive; 1.0 unless the cache is FP8.
        q_out: float32 [T, Hq, D].

    Returns:
        The rotated queries, float32 [T, Hq, D].
    """
    if on_cuda("rope_store_kv", qkv):
        return ops_cuda.rope_store_kv(
            qkv,
            cos_sin,
            positions,
            k_cache,
            v_cache,
            slot_mapping,
            interleaved=interleaved,
            k_scale=k_scale,
            v_scale=v_scale,
            q_out=q_out,
        )
    return native_ops.bind_rope_store_kv(
        qkv,
        cos_sin,
        positions,
        k_cache,
        v_cache,
        slot_mapping,
        interleaved=interleaved,
        k_scale=k_scale,
        v_scale=v_scale,
        q_out=q_out,
    )()


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
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    partition: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention over a paged cache: decode (one row per sequence), verification (K + 1 rows) and prefill alike.

    The query rows of a sequence are its LAST positions: row i of q_len stands at seq_len - q_len + i. A row that sees
    no key gives zeros. Nothing beyond ``seq_lens`` is read.

    Args:
        q: float32 [T, Hq, D].
        k_cache, v_cache: [num_blocks, block_size, Hkv, D], float32 (CPU alone), float16, float8_e4m3fn or
            float8_e5m2; Hq is a multiple of Hkv.
        block_table: int32 [B, max_blocks].
        seq_lens: int32 [B], each >= its number of query rows.
        query_start: int32 [B + 1], cumulative, from 0 to T.
        scale: factor of the scores.
        causal: a row sees keys up to its own position.
        window: (left, right) keys seen beside the own position; -1 is no limit. Not causal, a left limit alone is a
            limit on both sides.
        k_scale, v_scale: what a key or value of the cache is multiplied by; positive.
        partition: keys of a partition, a multiple of 16 (on CUDA of 64); partitions are merged in ascending order.
            None: the op's own.
        out: float32 [T, Hq, D].
    """
    if on_cuda("paged_attention", q):
        return ops_cuda.paged_attention(
            q,
            k_cache,
            v_cache,
            block_table,
            seq_lens,
            query_start,
            scale=scale,
            causal=causal,
            window=window,
            k_scale=k_scale,
            v_scale=v_scale,
            partition=partition,
            out=out,
        )
    return native_ops.bind_paged_attention(
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        query_start,
        scale=scale,
        causal=causal,
        window=window,
        k_scale=k_scale,
        v_scale=v_scale,
        partition=partition,
        out=out,
    )()
