"""The Llama decoder: its weights, and one forward as a flat list of steps over fixed buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.linear.adapter import AdaptedLinear, physical_width
from engine.model.attention import Attention
from engine.model.buffers import RowInputs, TensorRows
from engine.model.decoder import Forward, rope_table
from engine.model.device import HOST, ModelDevice
from engine.model.llama_config import LlamaConfig
from engine.model.taps import NO_TAPS, Taps
from engine.ops import bound
from engine.ops.bound import Step
from engine.ops.functional import Weight
from engine.parallel.layers import TensorParallel, single
from engine.state.paged_kv import PagedKVCache


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """Weights of one layer. ``qkv`` and ``gate_up`` are stacked by output row, so that each is one product."""

    attn_norm: torch.Tensor
    qkv: AdaptedLinear
    attn_output: AdaptedLinear
    ffn_norm: torch.Tensor
    gate_up: AdaptedLinear
    ffn_down: AdaptedLinear

    @property
    def projections(self) -> tuple[AdaptedLinear, ...]:
        """Every product of the layer."""
        return self.qkv, self.attn_output, self.gate_up, self.ffn_down

    def on(self, device: ModelDevice) -> LlamaLayer:
        """The same layer there."""
        return LlamaLayer(
            attn_norm=device.vector(self.attn_norm),
            qkv=self.qkv.on(device.weight),
            attn_output=self.attn_output.on(device.weight),
            ffn_norm=device.vector(self.ffn_norm),
            gate_up=self.gate_up.on(device.weight),
            ffn_down=self.ffn_down.on(device.weight),
        )


@dataclass(frozen=True, slots=True, eq=False)
class LlamaWeights:
    """Everything that a checkpoint holds, in the layout that the ops read."""

    config: LlamaConfig
    embedding: Weight
    layers: tuple[LlamaLayer, ...]
    output_norm: torch.Tensor
    head: Weight

    def on(self, device: ModelDevice) -> LlamaWeights:
        """The same weights there; what is shared stays shared."""
        embedding = device.weight(self.embedding)
        return replace(
            self,
            embedding=embedding,
            layers=tuple(layer.on(device) for layer in self.layers),
            output_norm=device.vector(self.output_norm),
            head=embedding if self.head is self.embedding else device.weight(self.head),
        )


class Llama:
    """A Llama model over one KV cache; weights, cache and ``attention`` are on ``device``."""

    def __init__(
        self,
        weights: LlamaWeights,
        cache: PagedKVCache,
        attention: Attention,
        *,
        max_positions: int,
        max_rows: int,
        device: ModelDevice = HOST,
        parallel: TensorParallel | None = None,
    ) -> None:
        """``parallel``: the ranks that share the model, of which ``weights`` are one's; None for a whole model."""
        config = weights.config
        self._parallel = parallel or single(config.vocab_size)
        self._config = config
        self._weights = weights
        self._head = self._parallel.head(weights.head)
        self._projections = [projection for layer in weights.layers for projection in layer.projections]
        self._cache = cache
        self._attention = attention
        self._cos_sin = device.vector(rope_table(max_positions, config.head_dim, config.rope_theta))
        width = partial(physical_width, self._projections)
        self._scratch = _Scratch(
            normed=device.zeros(max_rows, config.hidden_size),
            qkv=device.zeros(max_rows, width("attention qkv")),
            query=device.zeros(max_rows, config.num_heads, config.head_dim),
            attended=device.zeros(max_rows, config.num_heads, config.head_dim),
            gate_up=device.zeros(max_rows, width("mlp gate up")),
            activated=device.zeros(max_rows, config.intermediate_size),
        )

    @property
    def vocab_size(self) -> int:
        """See `Decoder`."""
        return self._parallel.vocab.total

    @property
    def hidden_size(self) -> int:
        """See `Decoder`."""
        return self._config.hidden_size

    @property
    def attention_layers(self) -> int:
        """See `Decoder`."""
        return self._config.num_layers

    @property
    def projections(self) -> Sequence[AdaptedLinear]:
        """See `Decoder`."""
        return self._projections

    def bind_body(self, inputs: RowInputs, hidden: torch.Tensor, *, prefill: bool, taps: Taps = NO_TAPS) -> Forward:
        """See `Decoder`; nothing is recurrent here."""
        scratch = self._scratch.first(len(hidden))
        steps = self._parallel.embedding(inputs.token_ids, self._weights.embedding, out=hidden)
        for index, layer in enumerate(self._weights.layers):
            steps += self._layer(index, layer, inputs, hidden, scratch)
            steps += taps.behind(index, hidden)
        return bound.program(steps)

    def bind_head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> Forward:
        """See `Decoder`."""
        norm = bound.rms_norm(hidden, self._weights.output_norm, self._config.rms_eps, out=normed)
        return bound.program([norm, *self._head.bind(normed, logits)])

    def _layer(
        self, index: int, layer: LlamaLayer, inputs: RowInputs, hidden: torch.Tensor, scratch: _Scratch
    ) -> list[Step]:
        config, k_cache, v_cache = self._config, self._cache.keys(index), self._cache.values(index)
        return [
            bound.rms_norm(hidden, layer.attn_norm, config.rms_eps, out=scratch.normed),
            *layer.qkv.bind(scratch.normed, scratch.qkv),
            bound.rope_store_kv(
                layer.qkv.logical(scratch.qkv),
                self._cos_sin,
                inputs.positions,
                k_cache,
                v_cache,
                inputs.slot_mapping,
                interleaved=config.rope_interleaved,
                q_out=scratch.query,
            ),
            self._attention.layer(scratch.query, k_cache, v_cache, inputs, out=scratch.attended),
            *self._parallel.add_linear(scratch.attended.flatten(1), layer.attn_output, hidden),
            bound.rms_norm(hidden, layer.ffn_norm, config.rms_eps, out=scratch.normed),
            *layer.gate_up.bind(scratch.normed, scratch.gate_up),
            bound.silu_mul(layer.gate_up.logical(scratch.gate_up), out=scratch.activated),
            *self._parallel.add_linear(scratch.activated, layer.ffn_down, hidden),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch(TensorRows):
    """Activations of T rows; every layer writes over them."""

    normed: torch.Tensor  # [T, H]
    qkv: torch.Tensor  # [T, (Hq + 2 Hkv) D]
    query: torch.Tensor  # [T, Hq, D]
    attended: torch.Tensor  # [T, Hq, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]
