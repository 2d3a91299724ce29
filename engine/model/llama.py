"""The Llama decoder: its sizes, its weights, and one forward as a flat list of native calls over fixed buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.buffers import RowInputs
from engine.model.decoder import rope_table
from engine.ops import bound
from engine.ops.bound import Call, Program
from engine.ops.functional import Weight
from engine.state.paged_kv import PagedKVCache


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of a Llama model. ``rope_interleaved``: pairs are (2i, 2i+1), as GGUF files have them."""

    vocab_size: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_eps: float
    rope_interleaved: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads over {self.num_kv_heads} KV heads; allowed: whole groups")

    @property
    def qkv_size(self) -> int:
        """Width of query, key and value heads side by side."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """Weights of one layer. ``qkv`` and ``gate_up`` are stacked by output row, so that each is one product."""

    attn_norm: torch.Tensor
    qkv: Weight
    attn_output: Weight
    ffn_norm: torch.Tensor
    gate_up: Weight
    ffn_down: Weight


@dataclass(frozen=True, slots=True, eq=False)
class LlamaWeights:
    """Everything that a checkpoint holds, in the layout that the ops read."""

    config: LlamaConfig
    embedding: Weight
    layers: tuple[LlamaLayer, ...]
    output_norm: torch.Tensor
    head: Weight


class Llama:
    """A Llama model over one KV cache."""

    def __init__(self, weights: LlamaWeights, cache: PagedKVCache, *, max_positions: int, max_rows: int) -> None:
        config = weights.config
        self._config = config
        self._weights = weights
        self._cache = cache
        self._cos_sin = rope_table(max_positions, config.head_dim, config.rope_theta)
        self._scratch = _Scratch(
            normed=torch.zeros(max_rows, config.hidden_size),
            qkv=torch.zeros(max_rows, config.qkv_size),
            query=torch.zeros(max_rows, config.num_heads, config.head_dim),
            attention=torch.zeros(max_rows, config.num_heads, config.head_dim),
            gate_up=torch.zeros(max_rows, 2 * config.intermediate_size),
            activated=torch.zeros(max_rows, config.intermediate_size),
        )

    @property
    def vocab_size(self) -> int:
        """See `Decoder`."""
        return self._config.vocab_size

    @property
    def hidden_size(self) -> int:
        """See `Decoder`."""
        return self._config.hidden_size

    def bind_body(self, inputs: RowInputs, hidden: torch.Tensor) -> Program:
        """See `Decoder`."""
        scratch = self._scratch.first(len(hidden))
        calls: list[Call] = [bound.embedding(inputs.token_ids, self._weights.embedding, out=hidden)]
        for index, layer in enumerate(self._weights.layers):
            calls += self._layer(index, layer, inputs, hidden, scratch)
        return Program(calls)

    def bind_head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> Program:
        """See `Decoder`."""
        norm = bound.rms_norm(hidden, self._weights.output_norm, self._config.rms_eps, out=normed)
        return Program([norm, bound.linear(normed, self._weights.head, out=logits)])

    def _layer(
        self, index: int, layer: LlamaLayer, inputs: RowInputs, hidden: torch.Tensor, scratch: _Scratch
    ) -> list[Call]:
        config, k_cache, v_cache = self._config, self._cache.keys(index), self._cache.values(index)
        return [
            bound.rms_norm(hidden, layer.attn_norm, config.rms_eps, out=scratch.normed),
            bound.linear(scratch.normed, layer.qkv, out=scratch.qkv),
            bound.rope_store_kv(
                scratch.qkv,
                self._cos_sin,
                inputs.positions,
                k_cache,
                v_cache,
                inputs.slot_mapping,
                interleaved=config.rope_interleaved,
                q_out=scratch.query,
            ),
            bound.paged_attention(
                scratch.query,
                k_cache,
                v_cache,
                inputs.block_table,
                inputs.seq_lens,
                inputs.query_start,
                scale=config.head_dim**-0.5,
                out=scratch.attention,
            ),
            bound.linear(scratch.attention.flatten(1), layer.attn_output, residual=hidden, out=hidden),
            bound.rms_norm(hidden, layer.ffn_norm, config.rms_eps, out=scratch.normed),
            bound.linear(scratch.normed, layer.gate_up, out=scratch.gate_up),
            bound.silu_mul(scratch.gate_up, out=scratch.activated),
            bound.linear(scratch.activated, layer.ffn_down, residual=hidden, out=hidden),
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch:
    """Activations of T rows, float32; every layer writes over them."""

    normed: torch.Tensor  # [T, H]
    qkv: torch.Tensor  # [T, (Hq + 2 Hkv) D]
    query: torch.Tensor  # [T, Hq, D]
    attention: torch.Tensor  # [T, Hq, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]

    def first(self, rows: int) -> _Scratch:
        """The same memory, cut to ``rows`` rows."""
        return _Scratch(
            normed=self.normed[:rows],
            qkv=self.qkv[:rows],
            query=self.query[:rows],
            attention=self.attention[:rows],
            gate_up=self.gate_up[:rows],
            activated=self.activated[:rows],
        )
