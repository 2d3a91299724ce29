"""The DFlash2 draft forward in numpy fp64 from the checkpoint's own tensors: a block and all its context, no cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def hidden(config: Mapping[str, Any], tensors: Mapping[str, F64], embedding: F64, taps: F64, anchor: int) -> F64:
    """Rows after the final norm, [K, H]. ``taps`` [T, taps * H] are of positions 0..T-1; the anchor stands at T."""
    special = config["dflash_config"]
    size, eps, dim = special["block_size"], config["rms_norm_eps"], config["head_dim"]
    count, heads, kv_heads = len(taps), config["num_attention_heads"], config["num_key_value_heads"]
    features = _norm(taps @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], eps)
    x = embedding[[anchor] + [special["mask_token_id"]] * (size - 1)] * special.get("input_embedding_scale", 1.0)
    at, all_at = np.arange(count, count + size), np.arange(count + size)
    for index, kind in enumerate(config["layer_types"]):
        weight = _below(tensors, f"layers.{index}.")

        def project(rows: F64, name: str, number: int, weight: Mapping[str, F64] = weight) -> F64:
            return (rows @ weight[f"self_attn.{name}_proj.weight"].T).reshape(len(rows), number, dim)

        normed = _norm(x, weight["input_layernorm.weight"], eps)
        inside = _conv(special, weight, "attention_conv", normed, normed, 0)
        q = _rope(config, _norm(project(inside, "q", heads), weight["self_attn.q_norm.weight"], eps), at)
        both = np.concatenate([features, inside])
        k = _rope(config, _norm(project(both, "k", kv_heads), weight["self_attn.k_norm.weight"], eps), all_at)
        v = project(both, "v", kv_heads)
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, heads // kv_heads, axis=1)) * dim**-0.5
        if kind == "sliding_attention":
            scores[:, np.abs(at[:, None] - all_at) >= config["sliding_window"]] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, np.repeat(v, heads // kv_heads, axis=1)).reshape(size, -1)
        x = x + _conv(special, weight, "attention_conv", normed, mixed @ weight["self_attn.o_proj.weight"].T, 1)
        normed = _norm(x, weight["post_attention_layernorm.weight"], eps)
        inside = _conv(special, weight, "mlp_conv", normed, normed, 0)
        gate = inside @ weight["mlp.gate_proj.weight"].T
        up = inside @ weight["mlp.up_proj.weight"].T
        out = (gate / (1 + np.exp(-gate)) * up) @ weight["mlp.down_proj.weight"].T
        x = x + _conv(special, weight, "mlp_conv", normed, out, 1)
    return _norm(x, tensors["norm.weight"], eps)[1:]


def scores(tensors: Mapping[str, F64], rows: F64, unary: F64, candidates: npt.NDArray[np.int64], anchor: int) -> F64:
    """The lattice [K, C, C], edge by edge."""
    drafts, count = candidates.shape
    gates = rows @ tensors["candidate_selector.hidden_projection.weight"].T
    before, behind = (tensors[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
    out = np.zeros((drafts, count, count))
    for step in range(drafts):
        for a in range(count):
            last = anchor if step == 0 else candidates[step - 1, a]
            for c in range(count):
                out[step, a, c] = unary[step, c] + (before[last] * gates[step] * behind[candidates[step, c]]).sum()
    return out


def _below(tensors: Mapping[str, F64], prefix: str) -> dict[str, F64]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _conv(special: Mapping[str, Any], weight: Mapping[str, F64], name: str, normed: F64, x: F64, side: int) -> F64:
    """Row by row and tap by tap, coefficients from ``normed``."""
    taps, size = special["conv_kernel_size"], special["conv_group_size"]
    groups = x.shape[1] // size
    delta = (normed @ weight[f"{name}.kernel_projection.weight"].T).reshape(len(x), 2, taps, groups)
    out = np.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(taps, row + 1)):
            factor = weight[f"{name}.base_kernel"][side, tap] + np.repeat(delta[row, side, tap], size)
            out[row] += factor * x[row - tap]
    return out


def _rope(config: Mapping[str, Any], rows: F64, positions: Sequence[int] | npt.NDArray[np.int64]) -> F64:
    """All of a head turns, pairs (i, i + D/2)."""
    half = config["head_dim"] // 2
    angle = np.outer(positions, config["rope_theta"] ** (-np.arange(half) / half))[:, None]
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate(
        (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)), axis=-1
    )


def _norm(x: F64, weight: F64, eps: float) -> F64:
    out: F64 = x * weight / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return out
