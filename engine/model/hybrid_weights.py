"""The weights of a hybrid decoder: what the forward reads, whichever of the two checkpoint layouts they came in.

GDN projections are stored either fused and interleaved by key-head group (``in_proj_qkvz``, ``in_proj_ba``) or section
by section (``in_proj_qkv``, ``in_proj_z``, ``in_proj_b``, ``in_proj_a``). Here they are one matrix with the rows
[q | k | v | z | b | a], heads in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import AttentionSizes, GdnSizes, HybridConfig, LayerKind


@dataclass(frozen=True, slots=True, eq=False)
class GdnWeights:
    """One Gated DeltaNet block, all float32."""

    in_proj: torch.Tensor  # [q | k | v | z | b | a rows, hidden]
    conv: torch.Tensor  # [conv_dim, conv_width]
    a_log: torch.Tensor  # [value_heads]
    dt_bias: torch.Tensor  # [value_heads]
    norm: torch.Tensor  # [value_dim], no offset
    out_proj: torch.Tensor  # [hidden, values]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """One full-attention block, all float32. ``gate`` is None where the model has no output gate."""

    qkv: torch.Tensor  # [q | k | v rows, hidden]
    gate: torch.Tensor | None  # [num_heads * head_dim, hidden]
    q_norm: torch.Tensor  # [head_dim], offset folded in
    k_norm: torch.Tensor  # [head_dim], offset folded in
    out_proj: torch.Tensor  # [hidden, num_heads * head_dim]


@dataclass(frozen=True, slots=True, eq=False)
class HybridLayer:
    """A token mixer and an MLP, each behind its norm (offset folded in)."""

    mixer_norm: torch.Tensor
    mixer: GdnWeights | AttentionWeights
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


@dataclass(frozen=True, slots=True, eq=False)
class HybridWeights:
    """The whole model."""

    config: HybridConfig
    embedding: torch.Tensor
    layers: tuple[HybridLayer, ...]
    final_norm: torch.Tensor
    head: torch.Tensor


def load_hybrid(checkpoint: Checkpoint, config: HybridConfig) -> HybridWeights:
    """Take every tensor of the model. Raises ``ModelFileError`` for one that is missing, misshapen or unknown."""
    hidden, inner = config.hidden_size, config.intermediate_size
    take = checkpoint.take

    def layer(index: int, kind: LayerKind) -> HybridLayer:
        prefix = f"model.layers.{index}."
        if kind is LayerKind.GDN:
            mixer: GdnWeights | AttentionWeights = _gdn(checkpoint, f"{prefix}linear_attn.", config.gdn, hidden)
        else:
            mixer = _attention(checkpoint, f"{prefix}self_attn.", config.attention, hidden)
        return HybridLayer(
            mixer_norm=_offset(take(f"{prefix}input_layernorm.weight", hidden)),
            mixer=mixer,
            mlp_norm=_offset(take(f"{prefix}post_attention_layernorm.weight", hidden)),
            gate_up=torch.cat([take(f"{prefix}mlp.{name}_proj.weight", inner, hidden) for name in ("gate", "up")]),
            down=take(f"{prefix}mlp.down_proj.weight", hidden, inner),
        )

    embedding = take("model.embed_tokens.weight", config.vocab_size, hidden)
    weights = HybridWeights(
        config=config,
        embedding=embedding,
        layers=tuple(layer(index, kind) for index, kind in enumerate(config.layers)),
        final_norm=_offset(take("model.norm.weight", hidden)),
        head=embedding if config.tied else take("lm_head.weight", config.vocab_size, hidden),
    )
    checkpoint.refuse_leftovers()
    return weights


def _offset(weight: torch.Tensor) -> torch.Tensor:
    """These models store a norm's weight as its distance from 1."""
    return weight + 1.0


def _gdn(checkpoint: Checkpoint, prefix: str, sizes: GdnSizes, hidden: int) -> GdnWeights:
    take = checkpoint.take
    if f"{prefix}in_proj_qkvz.weight" in checkpoint:
        qkvz = take(f"{prefix}in_proj_qkvz.weight", sizes.conv_dim + sizes.values, hidden)
        ba = take(f"{prefix}in_proj_ba.weight", 2 * sizes.value_heads, hidden)
        in_proj = torch.cat([*_ungroup_qkvz(qkvz, sizes), *_ungroup_ba(ba, sizes)])
    else:
        sections = (
            ("qkv", sizes.conv_dim),
            ("z", sizes.values),
            ("b", sizes.value_heads),
            ("a", sizes.value_heads),
        )
        in_proj = torch.cat([take(f"{prefix}in_proj_{name}.weight", rows, hidden) for name, rows in sections])
    return GdnWeights(
        in_proj=in_proj,
        conv=take(f"{prefix}conv1d.weight", sizes.conv_dim, 1, sizes.conv_width).squeeze(1).contiguous(),
        a_log=take(f"{prefix}A_log", sizes.value_heads),
        dt_bias=take(f"{prefix}dt_bias", sizes.value_heads),
        norm=take(f"{prefix}norm.weight", sizes.value_dim),
        out_proj=take(f"{prefix}out_proj.weight", hidden, sizes.values),
    )


def _ungroup_qkvz(rows: torch.Tensor, sizes: GdnSizes) -> list[torch.Tensor]:
    """Rows of each key head's group [q | k | its value heads' v | their z] -> all q, all k, all v, all z."""
    ratio = sizes.value_heads // sizes.key_heads
    widths = [sizes.key_dim, sizes.key_dim, ratio * sizes.value_dim, ratio * sizes.value_dim]
    groups = rows.view(sizes.key_heads, sum(widths), -1)
    return [part.flatten(0, 1) for part in torch.split(groups, widths, dim=1)]


def _ungroup_ba(rows: torch.Tensor, sizes: GdnSizes) -> list[torch.Tensor]:
    """Rows of each key head's group [its value heads' b | their a] -> all b, all a."""
    ratio = sizes.value_heads // sizes.key_heads
    groups = rows.view(sizes.key_heads, 2 * ratio, -1)
    return [part.flatten(0, 1) for part in torch.split(groups, ratio, dim=1)]


def _attention(checkpoint: Checkpoint, prefix: str, sizes: AttentionSizes, hidden: int) -> AttentionWeights:
    take = checkpoint.take
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    gate: torch.Tensor | None = None
    if sizes.gated:
        # Each head's rows are its query and then its gate.
        pairs = take(f"{prefix}q_proj.weight", 2 * queries, hidden).view(sizes.num_heads, 2, sizes.head_dim, hidden)
        query, gate = pairs[:, 0].reshape(queries, hidden), pairs[:, 1].reshape(queries, hidden)
    else:
        query = take(f"{prefix}q_proj.weight", queries, hidden)
    key, value = (take(f"{prefix}{name}_proj.weight", keys, hidden) for name in "kv")
    return AttentionWeights(
        qkv=torch.cat([query, key, value]),
        gate=gate,
        q_norm=_offset(take(f"{prefix}q_norm.weight", sizes.head_dim)),
        k_norm=_offset(take(f"{prefix}k_norm.weight", sizes.head_dim)),
        out_proj=take(f"{prefix}o_proj.weight", hidden, queries),
    )
