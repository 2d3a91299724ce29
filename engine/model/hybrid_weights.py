"""The weights of a hybrid decoder: what the forward reads, whichever of the two checkpoint layouts they came in.

GDN projections are stored either fused and interleaved by key-head group (``in_proj_qkvz``, ``in_proj_ba``) or section
by section (``in_proj_qkv``, ``in_proj_z``, ``in_proj_b``, ``in_proj_a``). Here they are one matrix with the rows
[q | k | v | z | b | a], heads in order. Projections are float32, or NVFP4 where the checkpoint stores them so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.errors import ModelFileError
from engine.linear.adapter import AdaptedLinear, adapt, adapt_nvfp4
from engine.linear.admission import require_admitted
from engine.linear.nvfp4 import Nvfp4Matrix
from engine.model.checkpoint import Checkpoint
from engine.model.device import ModelDevice
from engine.model.hybrid_config import AttentionSizes, GdnSizes, HybridConfig, LayerKind
from engine.model.hybrid_shards import HybridShard, hybrid_projections
from engine.model.saved_shards import saved_file

Matrix = torch.Tensor | Nvfp4Matrix


@dataclass(frozen=True, slots=True, eq=False)
class GdnWeights:
    """One Gated DeltaNet block; what is no projection is float32."""

    in_proj: AdaptedLinear  # [q | k | v | z | b | a rows, hidden]
    conv: torch.Tensor  # [conv_dim, conv_width]
    a_log: torch.Tensor  # [value_heads]
    dt_bias: torch.Tensor  # [value_heads]
    norm: torch.Tensor  # [value_dim], no offset
    out_proj: AdaptedLinear  # [hidden, values]

    @property
    def projections(self) -> tuple[AdaptedLinear, ...]:
        """Every product of the block."""
        return self.in_proj, self.out_proj

    def on(self, device: ModelDevice) -> GdnWeights:
        """The same weights there."""
        return GdnWeights(
            in_proj=self.in_proj.on(device.weight),
            conv=device.vector(self.conv),
            a_log=device.vector(self.a_log),
            dt_bias=device.vector(self.dt_bias),
            norm=device.vector(self.norm),
            out_proj=self.out_proj.on(device.weight),
        )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWeights:
    """One full-attention block, norms float32. ``gate`` is None where the model has no output gate."""

    qkv: AdaptedLinear  # [q | k | v rows, hidden]
    gate: AdaptedLinear | None  # [num_heads * head_dim, hidden]
    q_norm: torch.Tensor  # [head_dim], offset folded in
    k_norm: torch.Tensor  # [head_dim], offset folded in
    out_proj: AdaptedLinear  # [hidden, num_heads * head_dim]

    @property
    def projections(self) -> tuple[AdaptedLinear, ...]:
        """Every product of the block."""
        return self.qkv, *(() if self.gate is None else (self.gate,)), self.out_proj

    def on(self, device: ModelDevice) -> AttentionWeights:
        """The same weights there."""
        return AttentionWeights(
            qkv=self.qkv.on(device.weight),
            gate=None if self.gate is None else self.gate.on(device.weight),
            q_norm=device.vector(self.q_norm),
            k_norm=device.vector(self.k_norm),
            out_proj=self.out_proj.on(device.weight),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HybridLayer:
    """A token mixer and an MLP, each after its norm (offset folded in)."""

    mixer_norm: torch.Tensor
    mixer: GdnWeights | AttentionWeights
    mlp_norm: torch.Tensor
    gate_up: AdaptedLinear  # [2 * intermediate, hidden]
    down: AdaptedLinear  # [hidden, intermediate]

    @property
    def projections(self) -> tuple[AdaptedLinear, ...]:
        """Every product of the layer."""
        return *self.mixer.projections, self.gate_up, self.down

    def on(self, device: ModelDevice) -> HybridLayer:
        """The same layer there."""
        return HybridLayer(
            mixer_norm=device.vector(self.mixer_norm),
            mixer=self.mixer.on(device),
            mlp_norm=device.vector(self.mlp_norm),
            gate_up=self.gate_up.on(device.weight),
            down=self.down.on(device.weight),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HybridWeights:
    """The whole model."""

    config: HybridConfig
    embedding: torch.Tensor  # float16 or float32
    layers: tuple[HybridLayer, ...]
    final_norm: torch.Tensor
    head: torch.Tensor  # float16 or float32

    def on(self, device: ModelDevice) -> HybridWeights:
        """The same weights there; what is shared stays shared."""
        embedding = device.matrix(self.embedding)
        return replace(
            self,
            embedding=embedding,
            layers=tuple(layer.on(device) for layer in self.layers),
            final_norm=device.vector(self.final_norm),
            head=embedding if self.head is self.embedding else device.matrix(self.head),
        )


def load_hybrid(checkpoint: Checkpoint, shard: HybridShard) -> HybridWeights:
    """Take every tensor of a rank's model. ``checkpoint`` has the pieces of ``shard``, or the whole for one rank.

    Raises ``ModelFileError`` for a tensor that is missing, misshapen or unknown, ``InputError`` for a projection that
    is not admitted.
    """
    config = shard.local
    hidden, inner = config.hidden_size, config.intermediate_size
    take = checkpoint.take
    products = _Products(shard)

    def layer(index: int, kind: LayerKind) -> HybridLayer:
        prefix = f"model.layers.{index}."
        if kind is LayerKind.GDN:
            mixer: GdnWeights | AttentionWeights = _gdn(
                checkpoint, f"{prefix}linear_attn.", config.gdn, hidden, products
            )
        else:
            mixer = _attention(checkpoint, f"{prefix}self_attn.", config.attention, hidden, products)
        gate_up = (checkpoint.take_matrix(f"{prefix}mlp.{name}_proj.weight", inner, hidden) for name in ("gate", "up"))
        return HybridLayer(
            mixer_norm=_offset(take(f"{prefix}input_layernorm.weight", hidden)),
            mixer=mixer,
            mlp_norm=_offset(take(f"{prefix}post_attention_layernorm.weight", hidden)),
            gate_up=products.adapt("mlp gate up", *gate_up),
            down=products.adapt("mlp down", checkpoint.take_matrix(f"{prefix}mlp.down_proj.weight", hidden, inner)),
        )

    embedding, head = load_tables(checkpoint, config)
    weights = HybridWeights(
        config=config,
        embedding=embedding,
        layers=tuple(layer(index, kind) for index, kind in enumerate(config.layers)),
        final_norm=_offset(take("model.norm.weight", hidden)),
        head=head,
    )
    checkpoint.refuse_leftovers()
    return weights


def load_tables(checkpoint: Checkpoint, config: HybridConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and head [V, hidden] alone, float16 or float32; one tensor where the model ties them."""
    embedding = checkpoint.take_table("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    if config.tied:
        return embedding, embedding
    return embedding, checkpoint.take_table("lm_head.weight", config.vocab_size, config.hidden_size)


def load_whole_tables(folder: Path, config: HybridConfig, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`load_tables` of the whole vocabulary, out of a folder that is cut for ``size`` ranks or out of a whole one.

    Raises ``InputError`` and ``ModelFileError`` as `saved_file` does.
    """
    if saved_file(folder, 0, size) is None:
        with Checkpoint(folder) as checkpoint:
            return load_tables(checkpoint, config)
    shares = []
    for rank in range(size):
        with Checkpoint(folder, only=saved_file(folder, rank, size)) as checkpoint:
            shares.append(load_tables(checkpoint, HybridShard(config, size, rank).local))
    embedding, head = (torch.cat(parts)[: config.vocab_size] for parts in zip(*shares, strict=True))
    return embedding, embedding if config.tied else head


def _offset(weight: torch.Tensor) -> torch.Tensor:
    """These models store a norm's weight as its distance from 1."""
    return weight + 1.0


class _Products:
    """Makes projections of a rank's matrices, each as its row of the admission table says."""

    def __init__(self, shard: HybridShard) -> None:
        self._tp = shard.tp
        self._rows = {row.name: row for row in hybrid_projections(shard.config, "fp32")}

    def adapt(self, name: str, *parts: Matrix) -> AdaptedLinear:
        """One projection out of ``parts``, stacked by output row; NVFP4 is laid out for the kernels."""
        quantised = [part for part in parts if isinstance(part, Nvfp4Matrix)]
        if not quantised:
            dense = torch.cat([part for part in parts if isinstance(part, torch.Tensor)])
            return adapt(self._rows[name], self._tp, dense)
        if len(quantised) != len(parts):
            raise ModelFileError(
                f"{name}: some parts of this fused projection are NVFP4 and some are not; allowed: all or none"
            )
        (admitted,) = require_admitted([replace(self._rows[name], format="nvfp4")], self._tp)
        try:
            return adapt_nvfp4(admitted, quantised)
        except ValueError as error:
            raise ModelFileError(f"{name}: {error}") from error


def _pick(matrix: Matrix, rows: torch.Tensor) -> Matrix:
    return matrix.rows(rows) if isinstance(matrix, Nvfp4Matrix) else matrix[rows]


def _gdn(checkpoint: Checkpoint, prefix: str, sizes: GdnSizes, hidden: int, products: _Products) -> GdnWeights:
    take = checkpoint.take
    if f"{prefix}in_proj_qkvz.weight" in checkpoint:
        widths = {"qkvz": sizes.conv_dim + sizes.values, "ba": 2 * sizes.value_heads}
        fused = {
            name: checkpoint.take_matrix(f"{prefix}in_proj_{name}.weight", rows, hidden)
            for name, rows in widths.items()
        }
        sections = [_pick(fused["qkvz"], rows) for rows in _grouped_qkvz(sizes)]
        sections += [_pick(fused["ba"], rows) for rows in _grouped_ba(sizes)]
    else:
        named = (
            ("qkv", sizes.conv_dim),
            ("z", sizes.values),
            ("b", sizes.value_heads),
            ("a", sizes.value_heads),
        )
        sections = [checkpoint.take_matrix(f"{prefix}in_proj_{name}.weight", rows, hidden) for name, rows in named]
    return GdnWeights(
        in_proj=products.adapt("gdn in", *sections),
        conv=take(f"{prefix}conv1d.weight", sizes.conv_dim, 1, sizes.conv_width).squeeze(1).contiguous(),
        a_log=take(f"{prefix}A_log", sizes.value_heads),
        dt_bias=take(f"{prefix}dt_bias", sizes.value_heads),
        norm=take(f"{prefix}norm.weight", sizes.value_dim),
        out_proj=products.adapt("gdn out", checkpoint.take_matrix(f"{prefix}out_proj.weight", hidden, sizes.values)),
    )


def _grouped_qkvz(sizes: GdnSizes) -> Sequence[torch.Tensor]:
    """Rows of each key head's group are [q | k | its value heads' v | their z]: where all q, k, v and z lie."""
    ratio = sizes.value_heads // sizes.key_heads
    return _grouped(sizes.key_heads, [sizes.key_dim, sizes.key_dim, ratio * sizes.value_dim, ratio * sizes.value_dim])


def _grouped_ba(sizes: GdnSizes) -> Sequence[torch.Tensor]:
    """Rows of each key head's group are [its value heads' b | their a]: where all b and a lie."""
    return _grouped(sizes.key_heads, [sizes.value_heads // sizes.key_heads] * 2)


def _grouped(groups: int, widths: Sequence[int]) -> Sequence[torch.Tensor]:
    rows = torch.arange(groups * sum(widths)).view(groups, sum(widths))
    return [part.flatten() for part in torch.split(rows, list(widths), dim=1)]


def _attention(
    checkpoint: Checkpoint, prefix: str, sizes: AttentionSizes, hidden: int, products: _Products
) -> AttentionWeights:
    take = checkpoint.take
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    query: Matrix = checkpoint.take_matrix(f"{prefix}q_proj.weight", queries * (2 if sizes.gated else 1), hidden)
    gate: AdaptedLinear | None = None
    if sizes.gated:
        # Each head's rows are its query and then its gate.
        of_query, of_gate = _grouped(sizes.num_heads, [sizes.head_dim, sizes.head_dim])
        query, gate = _pick(query, of_query), products.adapt("attention gate", _pick(query, of_gate))
    key, value = (checkpoint.take_matrix(f"{prefix}{name}_proj.weight", keys, hidden) for name in "kv")
    return AttentionWeights(
        qkv=products.adapt("attention qkv", query, key, value),
        gate=gate,
        q_norm=_offset(take(f"{prefix}q_norm.weight", sizes.head_dim)),
        k_norm=_offset(take(f"{prefix}k_norm.weight", sizes.head_dim)),
        out_proj=products.adapt("attention out", checkpoint.take_matrix(f"{prefix}o_proj.weight", hidden, queries)),
    )
