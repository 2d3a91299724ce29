"""A hybrid decoder in numpy fp64: whole text in, logits out, no cache. It reads the checkpoint's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from engine.model.hybrid_config import HybridConfig, LayerKind
from suites.oracles import gdn

F64 = npt.NDArray[np.float64]


def logits(config: HybridConfig, tensors: Mapping[str, F64], token_ids: Sequence[int]) -> F64:
    """Logits after every token [T, V]. ``tensors`` are section by section (`in_proj_qkv`, `in_proj_z`, ...)."""
    x = tensors["model.embed_tokens.weight"][np.array(token_ids)]
    for index, kind in enumerate(config.layers):
        prefix = f"model.layers.{index}."
        normed = _norm(x, tensors[f"{prefix}input_layernorm.weight"], config.rms_eps)
        mixer = _gdn if kind is LayerKind.GDN else _attention
        x = x + mixer(config, tensors, prefix, normed)
        normed = _norm(x, tensors[f"{prefix}post_attention_layernorm.weight"], config.rms_eps)
        gate, up, down = (tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (_silu(normed @ gate.T) * (normed @ up.T)) @ down.T
    return _norm(x, tensors["model.norm.weight"], config.rms_eps) @ tensors["lm_head.weight"].T


def _gdn(config: HybridConfig, tensors: Mapping[str, F64], prefix: str, x: F64) -> F64:
    sizes, count = config.gdn, len(x)

    def project(name: str) -> F64:
        return x @ tensors[f"{prefix}linear_attn.in_proj_{name}.weight"].T

    weight = tensors[f"{prefix}linear_attn.conv1d.weight"][:, 0]
    mixed, _ = gdn.causal_conv(project("qkv"), weight, np.zeros((sizes.conv_width - 1, sizes.conv_dim)))
    q, k, v = np.split(mixed, [sizes.keys, 2 * sizes.keys], axis=1)
    decay, beta = gdn.gates(
        project("a"), project("b"), tensors[f"{prefix}linear_attn.A_log"], tensors[f"{prefix}linear_attn.dt_bias"]
    )
    core, _ = gdn.recurrence(
        q.reshape(count, sizes.key_heads, sizes.key_dim),
        k.reshape(count, sizes.key_heads, sizes.key_dim),
        v.reshape(count, sizes.value_heads, sizes.value_dim),
        decay,
        beta,
        np.zeros((sizes.value_heads, sizes.value_dim, sizes.key_dim)),
    )
    gate = project("z").reshape(core.shape)
    normed = gdn.gated_rms_norm(core, gate, tensors[f"{prefix}linear_attn.norm.weight"], config.rms_eps)
    out: F64 = normed.reshape(count, -1) @ tensors[f"{prefix}linear_attn.out_proj.weight"].T
    return out


def _attention(config: HybridConfig, tensors: Mapping[str, F64], prefix: str, x: F64) -> F64:
    sizes, count = config.attention, len(x)

    def heads(name: str) -> F64:
        rows = x @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T
        return rows.reshape(count, -1, sizes.head_dim)

    pairs = heads("q").reshape(count, sizes.num_heads, 2, sizes.head_dim)
    query = _rope(config, _norm(pairs[:, :, 0], tensors[f"{prefix}self_attn.q_norm.weight"], config.rms_eps))
    key = _rope(config, _norm(heads("k"), tensors[f"{prefix}self_attn.k_norm.weight"], config.rms_eps))
    group = sizes.num_heads // sizes.num_kv_heads
    key, value = np.repeat(key, group, axis=1), np.repeat(heads("v"), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) * sizes.head_dim**-0.5
    scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", weights, value) / (1 + np.exp(-pairs[:, :, 1]))
    out: F64 = attended.reshape(count, -1) @ tensors[f"{prefix}self_attn.o_proj.weight"].T
    return out


def _rope(config: HybridConfig, rows: F64) -> F64:
    """Turn the pairs (i, i + R/2) of the first R dimensions."""
    sizes = config.attention
    half = sizes.rotary_dim // 2
    frequency = sizes.rope_theta ** (-np.arange(half) / half)
    angle = np.outer(np.arange(len(rows)), frequency)[:, None]
    first, second, rest = np.split(rows, [half, 2 * half], axis=-1)
    turned = (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle), rest)
    return np.concatenate(turned, axis=-1)


def _norm(x: F64, weight: F64, eps: float) -> F64:
    out: F64 = x * (1 + weight) / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return out


def _silu(x: F64) -> F64:
    out: F64 = x / (1 + np.exp(-x))
    return out
