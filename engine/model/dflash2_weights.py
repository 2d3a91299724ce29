"""The weights of a DFlash2 draft model out of its safetensors. Names and shapes, all of them needed, no others allowed:

==============================================  ===================================================================
``fc.weight``                                   [H, taps * H]: the taps' rows side by side, in the config's order
``hidden_norm.weight``                          [H]: over what ``fc`` gives; the result feeds every layer's keys
``layers.N.input_layernorm.weight``,            [H]
``layers.N.post_attention_layernorm.weight``
``layers.N.self_attn.q_proj.weight``            [heads * D, H]
``layers.N.self_attn.k_proj.weight``,           [kv_heads * D, H]: of the block and of the context alike
``layers.N.self_attn.v_proj.weight``
``layers.N.self_attn.q_norm.weight``,           [D], over each head, before RoPE
``layers.N.self_attn.k_norm.weight``
``layers.N.self_attn.o_proj.weight``            [H, heads * D]
``layers.N.mlp.gate_proj.weight``, ``up_proj``  [I, H]
``layers.N.mlp.down_proj.weight``               [H, I]
``layers.N.attention_conv.base_kernel``,        [2 sides, conv taps, H]: side 0 before the sublayer, 1 after it
``layers.N.mlp_conv.base_kernel``
``layers.N.attention_conv.kernel_projection     [2 * conv taps * groups, H]: rows by side, then tap, then group; read
.weight``, ``layers.N.mlp_conv.…``              from the sublayer's normed input for both sides
``norm.weight``                                 [H]: before the target's head and of the selector
``candidate_selector.hidden_projection.weight`` [rank, H]
``candidate_selector.predecessor_codebook``,    [V, rank]
``candidate_selector.successor_codebook``
==============================================  ===================================================================

A norm's weight is the factor itself (no offset of 1). Linear layers have no bias. Stored as float32, float16,
bfloat16, or float8_e4m3fn with the scale of each row beside it (``NAME_scale``, float32 [rows, 1]); matrices that are
stored in float16 stay so in memory. Computed in float32. The forward is described in `engine.model.dflash2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from engine.model.checkpoint import Checkpoint
from engine.model.device import ModelDevice
from engine.model.dflash2_config import DFlash2Config


@dataclass(frozen=True, slots=True, eq=False)
class ConvWeights:
    """One grouped dynamic convolution."""

    base: torch.Tensor  # [2 sides, taps, H], float32
    projection: torch.Tensor  # [2 * taps * groups, H]

    def on(self, device: ModelDevice) -> ConvWeights:
        """The same weights there."""
        return ConvWeights(device.vector(self.base), device.matrix(self.projection))


@dataclass(frozen=True, slots=True, eq=False)
class DraftLayer:
    """One layer: norms in float32, matrices in float32 or float16."""

    input_norm: torch.Tensor  # [H]
    attention_conv: ConvWeights
    qkv: torch.Tensor  # [(heads + 2 kv_heads) D, H]
    q_norm: torch.Tensor  # [D]
    k_norm: torch.Tensor  # [D]
    out_proj: torch.Tensor  # [H, heads * D]
    mlp_norm: torch.Tensor  # [H]
    mlp_conv: ConvWeights
    gate_up: torch.Tensor  # [2 I, H]
    down: torch.Tensor  # [H, I]

    def on(self, device: ModelDevice) -> DraftLayer:
        """The same weights there."""
        return DraftLayer(
            input_norm=device.vector(self.input_norm),
            attention_conv=self.attention_conv.on(device),
            qkv=device.matrix(self.qkv),
            q_norm=device.vector(self.q_norm),
            k_norm=device.vector(self.k_norm),
            out_proj=device.matrix(self.out_proj),
            mlp_norm=device.vector(self.mlp_norm),
            mlp_conv=self.mlp_conv.on(device),
            gate_up=device.matrix(self.gate_up),
            down=device.matrix(self.down),
        )


@dataclass(frozen=True, slots=True, eq=False)
class DFlash2Weights:
    """The whole draft model: norms in float32, matrices in float32 or float16."""

    config: DFlash2Config
    fc: torch.Tensor  # [H, taps * H]
    hidden_norm: torch.Tensor  # [H]
    layers: tuple[DraftLayer, ...]
    final_norm: torch.Tensor  # [H]
    selector_hidden: torch.Tensor  # [rank, H]
    predecessors: torch.Tensor  # [V, rank]
    successors: torch.Tensor  # [V, rank]

    def on(self, device: ModelDevice) -> DFlash2Weights:
        """The same weights there."""
        return DFlash2Weights(
            config=self.config,
            fc=device.matrix(self.fc),
            hidden_norm=device.vector(self.hidden_norm),
            layers=tuple(layer.on(device) for layer in self.layers),
            final_norm=device.vector(self.final_norm),
            selector_hidden=device.matrix(self.selector_hidden),
            predecessors=device.matrix(self.predecessors),
            successors=device.matrix(self.successors),
        )


def load_dflash2(checkpoint: Checkpoint, config: DFlash2Config) -> DFlash2Weights:
    """Take every tensor of the model. Raises ``ModelFileError`` for one that is missing, misshapen or unknown."""
    take, hidden = checkpoint.take, config.hidden_size
    table = partial(_matrix, checkpoint)
    weights = DFlash2Weights(
        config=config,
        fc=table("fc.weight", hidden, len(config.target_layer_ids) * hidden),
        hidden_norm=take("hidden_norm.weight", hidden),
        layers=tuple(_layer(checkpoint, f"layers.{index}.", config) for index in range(config.num_layers)),
        final_norm=take("norm.weight", hidden),
        selector_hidden=table("candidate_selector.hidden_projection.weight", config.selector_rank, hidden),
        predecessors=table("candidate_selector.predecessor_codebook", config.vocab_size, config.selector_rank),
        successors=table("candidate_selector.successor_codebook", config.vocab_size, config.selector_rank),
    )
    checkpoint.refuse_leftovers()
    return weights


def _layer(checkpoint: Checkpoint, prefix: str, config: DFlash2Config) -> DraftLayer:
    take, hidden, inner, dim = checkpoint.take, config.hidden_size, config.intermediate_size, config.head_dim
    table = partial(_matrix, checkpoint)
    heads = (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))

    def conv(name: str) -> ConvWeights:
        rows = 2 * config.conv_kernel * config.conv_groups
        return ConvWeights(
            base=take(f"{prefix}{name}.base_kernel", 2, config.conv_kernel, hidden),
            projection=table(f"{prefix}{name}.kernel_projection.weight", rows, hidden),
        )

    return DraftLayer(
        input_norm=take(f"{prefix}input_layernorm.weight", hidden),
        attention_conv=conv("attention_conv"),
        qkv=torch.cat([table(f"{prefix}self_attn.{name}_proj.weight", count * dim, hidden) for name, count in heads]),
        q_norm=take(f"{prefix}self_attn.q_norm.weight", dim),
        k_norm=take(f"{prefix}self_attn.k_norm.weight", dim),
        out_proj=table(f"{prefix}self_attn.o_proj.weight", hidden, config.num_heads * dim),
        mlp_norm=take(f"{prefix}post_attention_layernorm.weight", hidden),
        mlp_conv=conv("mlp_conv"),
        gate_up=torch.cat([table(f"{prefix}mlp.{name}_proj.weight", inner, hidden) for name in ("gate", "up")]),
        down=table(f"{prefix}mlp.down_proj.weight", hidden, inner),
    )


def _matrix(checkpoint: Checkpoint, name: str, *shape: int) -> torch.Tensor:
    return checkpoint.take(name, *shape) if f"{name}_scale" in checkpoint else checkpoint.take_table(name, *shape)
