"""A hybrid decoder in fp64: the whole text in, every layer's residual stream and the logits out, no cache, no state.

It reads the checkpoint's own tensors, section by section (``in_proj_qkv``, ``in_proj_z``, …), and its ``config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suites.oracles import gdn
from suites.oracles.arrays import F64
from suites.oracles.dense import sigmoid, silu

Config = Mapping[str, Any]
Tensors = Mapping[str, F64]


def logits(config: Config, tensors: Tensors, token_ids: Sequence[int]) -> F64:
    """Logits after every token [T, V]."""
    last = residuals(config, tensors, token_ids)[-1]
    return _norm(last, tensors["model.norm.weight"], config["rms_norm_eps"]) @ tensors["lm_head.weight"].T


def residuals(config: Config, tensors: Tensors, token_ids: Sequence[int]) -> list[F64]:
    """The residual stream [T, H] that *leaves* each layer, in order; what a tap of layer i reads is element i."""
    eps, out = config["rms_norm_eps"], []
    x = tensors["model.embed_tokens.weight"][np.array(token_ids)]
    for index in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{index}.")
        }
        mixer = _attention if "self_attn.q_proj.weight" in layer else _gdn
        x = x + mixer(config, layer, _norm(x, layer["input_layernorm.weight"], eps))
        normed = _norm(x, layer["post_attention_layernorm.weight"], eps)
        gate, up = (normed @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (silu(gate) * up) @ layer["mlp.down_proj.weight"].T
        out.append(x)
    return out


def _gdn(config: Config, layer: Tensors, x: F64) -> F64:
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    count, keys = len(x), key_heads * key_dim

    def project(name: str) -> F64:
        return x @ layer[f"linear_attn.in_proj_{name}.weight"].T

    weight = layer["linear_attn.conv1d.weight"][:, 0]
    mixed, _ = gdn.causal_conv(project("qkv"), weight, np.zeros((weight.shape[1] - 1, weight.shape[0])))
    q, k, v = np.split(mixed, [keys, 2 * keys], axis=1)
    decay, beta = gdn.gates(project("a"), project("b"), layer["linear_attn.A_log"], layer["linear_attn.dt_bias"])
    core, _ = gdn.recurrence(
        q.reshape(count, key_heads, key_dim),
        k.reshape(count, key_heads, key_dim),
        v.reshape(count, value_heads, value_dim),
        decay,
        beta,
        np.zeros((value_heads, value_dim, key_dim)),
    )
    gate = project("z").reshape(core.shape)
    normed = gdn.gated_rms_norm(core, gate, layer["linear_attn.norm.weight"], config["rms_norm_eps"])
    return normed.reshape(count, -1) @ layer["linear_attn.out_proj.weight"].T


def _attention(config: Config, layer: Tensors, x: F64) -> F64:
    count, dim = len(x), config["head_dim"]
    num_heads, num_kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]

    def heads(name: str) -> F64:
        return (x @ layer[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, dim)

    pairs = heads("q").reshape(count, num_heads, 2, dim)
    query = _rope(config, _norm(pairs[:, :, 0], layer["self_attn.q_norm.weight"], eps))
    key = _rope(config, _norm(heads("k"), layer["self_attn.k_norm.weight"], eps))
    group = num_heads // num_kv_heads
    key, value = np.repeat(key, group, axis=1), np.repeat(heads("v"), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) * dim**-0.5
    scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", weights, value) * sigmoid(pairs[:, :, 1])
    out: F64 = attended.reshape(count, -1) @ layer["self_attn.o_proj.weight"].T
    return out


def _rope(config: Config, rows: F64) -> F64:
    """Turn the pairs (i, i + R/2) of the first R dimensions."""
    half = int(config["head_dim"] * config["partial_rotary_factor"]) // 2
    angle = np.outer(np.arange(len(rows)), config["rope_theta"] ** (-np.arange(half) / half))[:, None]
    first, second, rest = np.split(rows, [half, 2 * half], axis=-1)
    turned = (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle), rest)
    return np.concatenate(turned, axis=-1)


def _norm(x: F64, weight: F64, eps: float) -> F64:
    """RMSNorm whose stored weight is an offset from 1."""
    out: F64 = x * (1 + weight) / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return out
