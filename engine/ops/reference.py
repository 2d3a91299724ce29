"""Plain torch twins of `engine.ops.functional`, name for name and argument for argument (the GDN ones without ``out``).

They say what each op means: no tiling, no fusing, float32 inside. They run on any device and check nothing;
`functional` checks.
"""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from engine.ops.gdn_reference import gdn_chunk, gdn_conv, gdn_gated_rms_norm, gdn_gates, gdn_recurrent
from engine.ops.packed import PackedQ4_1, PackedQ8_0
from native.cuda_bindings.packed import PackedInt4, PackedNvfp4

__all__ = [
    "FULL_WINDOW",
    "Weight",
    "candidate_logits",
    "dense_logits",
    "embedding",
    "fp8_decode",
    "fp8_encode",
    "gather_pages",
    "gdn_chunk",
    "gdn_conv",
    "gdn_gated_rms_norm",
    "gdn_gates",
    "gdn_recurrent",
    "linear",
    "paged_attention",
    "rms_norm",
    "rope_store_kv",
    "rotate",
    "silu_mul",
    "store_kv",
    "visible",
]

Weight = torch.Tensor | PackedQ4_1 | PackedQ8_0 | PackedInt4 | PackedNvfp4

FULL_WINDOW = (-1, -1)


def embedding(ids: torch.Tensor, weight: PackedQ8_0 | torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of ``weight`` [V, H] for ``ids`` [T] -> float32 [T, H]."""
    rows = weight[ids.long()].float() if isinstance(weight, torch.Tensor) else weight.dequantize_rows(ids.long())
    return _give(rows, out)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension of ``x`` [T, H] -> like ``x``."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return _give((wide * scale * weight).to(x.dtype), out)


def linear(
    x: torch.Tensor, weight: Weight, *, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``x`` [M, K] @ ``weight`` [N, K].T (+ ``residual`` [M, N]) -> float32 [M, N]."""
    dense = weight.float() if isinstance(weight, torch.Tensor) else weight.dequantize()
    product = x.float() @ dense.T
    return _give(product if residual is None else product + residual, out)


def dense_logits(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [M, V] logits of ``x`` [M, K] and ``weight`` [V, K]."""
    return linear(x, weight, out=out)


def candidate_logits(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """float32 [M, C] dots of ``x`` [M, K] with rows ``ids`` [M, C] of ``weight`` [V, K]."""
    return _give((x.float().unsqueeze(1) * weight[ids].float()).sum(dim=-1), out)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """SwiGLU: ``gate_up`` [M, 2 I] holds gate | up -> silu(gate) * up, [M, I]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return _give((silu(gate) * up).to(gate_up.dtype), out)


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
    """Rotate queries and keys of ``qkv`` [T, (Hq + 2 Hkv) D]; write keys and values to their slots -> q [T, Hq, D]."""
    tokens = qkv.shape[0]
    kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.float().reshape(tokens, -1, head_dim)
    query_heads = heads.shape[1] - 2 * kv_heads
    table = cos_sin[positions.long()].unsqueeze(1)  # [T, 1, R / 2, 2]
    rotated = rotate(heads[:, : query_heads + kv_heads], table, interleaved=interleaved)
    keys, values = rotated[:, query_heads:], heads[:, query_heads + kv_heads :]
    store_kv(keys, values, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)
    return _give(rotated[:, :query_heads], q_out)


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
    """Write ``k`` and ``v`` [T, Hkv, D] to their slots; FP8 caches get codes of x / scale."""
    block_size = k_cache.shape[1]
    for cache, rows, scale in ((k_cache, k, k_scale), (v_cache, v, v_scale)):
        fp8 = cache.element_size() == 1
        stored = fp8_encode(rows.float(), cache.dtype, scale=scale) if fp8 else rows.to(cache.dtype)
        bits = cache.view(torch.uint8) if fp8 else cache  # FP8 tensors cannot be indexed
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                bits[slot // block_size, slot % block_size] = stored[token].view(bits.dtype)


def fp8_encode(
    x: torch.Tensor, dtype: torch.dtype, *, scale: float = 1.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Codes of x / scale, clamped to the finite range before torch rounds, every NaN 0x7F."""
    quotient = x.float() / scale
    largest = torch.finfo(dtype).max
    codes = quotient.clamp(-largest, largest).to(dtype).view(torch.uint8)
    codes = torch.where(quotient.isnan(), torch.full_like(codes, 0x7F), codes).view(dtype)
    return _give(codes, out)


def fp8_decode(
    codes: torch.Tensor,
    *,
    scale: float = 1.0,
    out_dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values of the codes times ``scale``."""
    return _give((codes.float() * scale).to(out_dtype), out)


def rotate(heads: torch.Tensor, table: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Rotary embedding of ``heads`` [T, N, D] by ``table`` [T, 1, R / 2, 2] (cos, sin); the last D - R stay."""
    half = table.shape[-2]
    turning, still = heads[..., : 2 * half], heads[..., 2 * half :]
    cos, sin = table[..., 0], table[..., 1]
    if interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
    else:
        first, second = turning[..., :half], turning[..., half:]
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat((joined, still), dim=-1)


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
    """Softmax attention of ``q`` [T, Hq, D] over paged keys and values -> float32 [T, Hq, D].

    The query rows of a sequence are its last ones. A row that sees no key gives zeros. ``partition`` is how an
    implementation cuts the keys; it has no meaning for the answer.
    """
    result = torch.zeros_like(q, dtype=torch.float32)
    group = q.shape[1] // k_cache.shape[2]
    starts = query_start.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        first, last = starts[sequence], starts[sequence + 1]
        if first == last or length == 0:
            continue
        keys = gather_pages(k_cache, block_table[sequence], length).repeat_interleave(group, dim=1)
        values = gather_pages(v_cache, block_table[sequence], length).repeat_interleave(group, dim=1)
        seen = visible(length, last - first, causal=causal, window=window).to(q.device)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float(), keys) * (scale * k_scale)
        scores = scores.masked_fill(~seen, float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        result[first:last] = torch.einsum("hqk,khd->qhd", weights, values) * v_scale
    return _give(result.to(q.dtype), out)


def gather_pages(cache: torch.Tensor, block_row: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` rows of one sequence, float32 [length, Hkv, D]; nothing beyond them is read."""
    positions = torch.arange(length, device=cache.device)
    blocks = block_row.long()[positions // cache.shape[1]]
    bits = cache.view(torch.uint8) if cache.element_size() == 1 else cache  # FP8 tensors cannot be indexed
    return bits[blocks, positions % cache.shape[1]].view(cache.dtype).float()


def visible(length: int, queries: int, *, causal: bool, window: tuple[int, int]) -> torch.Tensor:
    """Which of ``length`` keys each of the last ``queries`` positions sees: bool [queries, length].

    Not causal, a left limit alone is a limit on both sides.
    """
    at = torch.arange(length - queries, length).unsqueeze(1)
    key = torch.arange(length).unsqueeze(0)
    left, right = window
    if not causal and left >= 0 and right < 0:
        right = left
    seen = torch.ones(queries, length, dtype=torch.bool)
    if causal:
        seen &= key <= at
    if left >= 0:
        seen &= key >= at - left
    if right >= 0:
        seen &= key <= at + right
    return seen


def _give(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None else out.copy_(result)
