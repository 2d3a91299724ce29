"""The DFlash2 draft in fp64 from the description of its parts: taps in, a lattice and a walk out. No cache, no buffers.

``tensors`` are the checkpoint's own, ``config`` its config.json. Row 0 of a block is the anchor, rows 1..K are masks;
row l predicts the token at its own position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from suites.oracles.arrays import F64, I64
from suites.oracles.dense import silu

Config = Mapping[str, Any]
Tensors = Mapping[str, F64]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What a block comes to: hidden rows [K, H], logits [K, V], candidates [K, C], unary [K, C], scores [K, C, C]."""

    hidden: F64
    logits: F64
    candidates: I64
    unary: F64
    scores: F64


def features(config: Config, tensors: Tensors, taps: F64) -> F64:
    """One row a context token [T, H]: the taps side by side [T, n H] through ``fc`` and a norm."""
    return rms_norm(taps @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], config["rms_norm_eps"])


def draft(config: Config, tensors: Tensors, embedding: F64, head: F64, taps: F64, anchor: int) -> Drafted:
    """Draft after a context of T tokens; the anchor stands at position T. ``embedding``, ``head`` are the target's."""
    hidden = backbone(config, tensors, embedding, features(config, tensors, taps), anchor)
    return select(config, tensors, hidden, hidden @ head.T, anchor)


def backbone(config: Config, tensors: Tensors, embedding: F64, context: F64, anchor: int) -> F64:
    """The rows of the masks after the final norm, [K, H]."""
    special, eps = config["dflash_config"], config["rms_norm_eps"]
    tokens = [anchor, *[special["mask_token_id"]] * (special["block_size"] - 1)]
    stream = embedding[tokens] * special.get("input_embedding_scale", 1.0)
    for number in range(config["num_hidden_layers"]):
        name = f"layers.{number}"
        entering = rms_norm(stream, tensors[f"{name}.input_layernorm.weight"], eps)
        before, behind = convolutions(special, tensors, f"{name}.attention_conv", entering)
        stream = stream + behind(attention(config, tensors, number, context, before(entering)))
        entering = rms_norm(stream, tensors[f"{name}.post_attention_layernorm.weight"], eps)
        before, behind = convolutions(special, tensors, f"{name}.mlp_conv", entering)
        stream = stream + behind(swiglu(tensors, f"{name}.mlp", before(entering)))
    return rms_norm(stream[1:], tensors["norm.weight"], eps)


class Convolution:
    """One side of a grouped dynamic convolution: a row and the rows before it in its own block, weighed."""

    def __init__(self, kernel: F64) -> None:
        self.kernel = kernel  # [rows, taps, H]

    def __call__(self, rows: F64) -> F64:
        out = np.zeros_like(rows)
        count, taps = self.kernel.shape[:2]
        for tap in range(taps):
            shifted = np.zeros_like(rows)
            shifted[tap:] = rows[: count - tap]
            out += self.kernel[:, tap] * shifted
        return out


def convolutions(special: Config, tensors: Tensors, name: str, entering: F64) -> tuple[Convolution, Convolution]:
    """Both sides around a sublayer; the coefficients of both come from the rows that enter it."""
    count, width = entering.shape
    taps, size = special["conv_kernel_size"], special["conv_group_size"]
    projected = entering @ tensors[f"{name}.kernel_projection.weight"].T
    delta = projected.reshape(count, 2, taps, width // size).repeat(size, axis=3)
    kernel = tensors[f"{name}.base_kernel"][None] + delta
    return Convolution(kernel[:, 0]), Convolution(kernel[:, 1])


def attention(config: Config, tensors: Tensors, number: int, context: F64, rows: F64) -> F64:
    """The block's rows look at the whole context and at the whole block, within the window of a sliding layer."""
    dim, name = config["head_dim"], f"layers.{number}.self_attn"
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    start, count = len(context), len(rows)
    # The context passes no norm of the layer: its features are projected as they are.
    both = np.concatenate([context, rows])
    positions = np.arange(start + count)

    def project(what: F64, kind: str, number_of_heads: int) -> F64:
        return (what @ tensors[f"{name}.{kind}_proj.weight"].T).reshape(len(what), number_of_heads, dim)

    eps = config["rms_norm_eps"]
    query = turn(config, rms_norm(project(rows, "q", heads), tensors[f"{name}.q_norm.weight"], eps), positions[start:])
    key = turn(config, rms_norm(project(both, "k", kv_heads), tensors[f"{name}.k_norm.weight"], eps), positions)
    value = project(both, "v", kv_heads)
    sliding = config["layer_types"][number] == "sliding_attention"
    out = np.zeros((count, heads, dim))
    for row in range(count):
        distance = np.abs(positions - (start + row))
        seen = distance < config["sliding_window"] if sliding else np.ones(len(positions), dtype=bool)
        for one in range(heads):
            of = one // (heads // kv_heads)
            scores = key[seen, of] @ query[row, one] / np.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[row, one] = weights @ value[seen, of] / weights.sum()
    return out.reshape(count, heads * dim) @ tensors[f"{name}.o_proj.weight"].T


def swiglu(tensors: Tensors, name: str, rows: F64) -> F64:
    """The MLP."""
    gate, up = (rows @ tensors[f"{name}.{kind}_proj.weight"].T for kind in ("gate", "up"))
    return (silu(gate) * up) @ tensors[f"{name}.down_proj.weight"].T


def turn(config: Config, heads: F64, positions: I64) -> F64:
    """RoPE of the draft's own config over all of a head: pairs (i, i + D/2), or (2i, 2i + 1) where it says so."""
    dim = config["head_dim"]
    angle = positions[:, None, None] * config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    pairs = (
        heads.reshape(*heads.shape[:-1], dim // 2, 2)
        if not config.get("rope_is_neox_style", True)
        else (heads.reshape(*heads.shape[:-1], 2, dim // 2).swapaxes(-1, -2))
    )
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)
    parts = np.stack([turned.real, turned.imag], axis=-1)
    if config.get("rope_is_neox_style", True):
        parts = parts.swapaxes(-1, -2)
    out: F64 = parts.reshape(heads.shape)
    return out


def select(config: Config, tensors: Tensors, hidden: F64, logits: F64, anchor: int) -> Drafted:
    """The best C tokens of each slot (lower ids first among equals) and the score of each after each of the last."""
    special = config["dflash_config"]
    width, cap = special["selector_top_k"], special.get("final_logit_softcapping")
    order = np.lexsort((np.broadcast_to(np.arange(logits.shape[1]), logits.shape), -logits))
    candidates = order[:, :width]
    unary = np.take_along_axis(logits, candidates, axis=1) * special.get("output_multiplier", 1.0)
    if cap is not None:
        unary = cap * np.tanh(unary / cap)
    gate = hidden @ tensors["candidate_selector.hidden_projection.weight"].T
    before, behind = (tensors[f"candidate_selector.{kind}_codebook"] for kind in ("predecessor", "successor"))
    scores = np.zeros((len(hidden), width, width))
    for slot in range(len(hidden)):
        predecessors = [anchor] * width if slot == 0 else candidates[slot - 1]
        scores[slot] = unary[slot] + (before[predecessors] * gate[slot]) @ behind[candidates[slot]].T
    return Drafted(hidden, logits, candidates, unary, scores)


def laws_along(drafted: Drafted, tokens: Sequence[int], temperature: float) -> list[dict[int, float]]:
    """The law that each of ``tokens`` was drawn from: the softmax of the row of the token before it."""
    laws, row = [], 0
    for slot, token in enumerate(tokens):
        scores = drafted.scores[slot, row] / temperature
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        laws.append(dict(zip(drafted.candidates[slot].tolist(), weights.tolist(), strict=True)))
        row = drafted.candidates[slot].tolist().index(token)
    return laws


def rms_norm(rows: F64, weight: F64, eps: float) -> F64:
    """Over the last axis; the stored weight is the factor itself."""
    out: F64 = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + eps) * weight
    return out
