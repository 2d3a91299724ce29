"""The Llama decoder: its sizes, its weights, and one forward as a flat list of native calls over fixed buffers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.buffers import RowBuffers
from engine.ops import bound
from engine.ops.bound import Call
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


def rope_table(positions: int, head_dim: int, theta: float) -> torch.Tensor:
    """cos and sin of every position and pair, float32 ``[positions, head_dim / 2, 2]``, rounded once from float64."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64).outer(frequency)
    return torch.stack((angle.cos(), angle.sin()), dim=-1).float()


class Llama:
    """A Llama model over one KV cache. It decides nothing: ``body`` and ``head`` list what a forward runs."""

    def __init__(self, weights: LlamaWeights, cache: PagedKVCache, max_positions: int) -> None:
        self.config = weights.config
        self._weights = weights
        self._cache = cache
        self._cos_sin = rope_table(max_positions, self.config.head_dim, self.config.rope_theta)

    def body(self, rows: RowBuffers) -> list[Call]:
        """From token ids to the last layer's residual stream, in ``rows.hidden``; writes the rows' keys and values."""
        calls: list[Call] = [bound.embedding(rows.token_ids, self._weights.embedding, out=rows.hidden)]
        for index, layer in enumerate(self._weights.layers):
            calls += self._layer(index, layer, rows)
        return calls

    def head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> list[Call]:
        """From residual rows ``[M, H]`` to float32 logits ``[M, V]``."""
        norm = bound.rms_norm(hidden, self._weights.output_norm, self.config.rms_eps, out=normed)
        return [norm, bound.linear(normed, self._weights.head, out=logits)]

    def _layer(self, index: int, layer: LlamaLayer, rows: RowBuffers) -> list[Call]:
        config, k_cache, v_cache = self.config, self._cache.keys(index), self._cache.values(index)
        return [
            bound.rms_norm(rows.hidden, layer.attn_norm, config.rms_eps, out=rows.normed),
            bound.linear(rows.normed, layer.qkv, out=rows.qkv),
            bound.rope_store_kv(
                rows.qkv,
                self._cos_sin,
                rows.positions,
                k_cache,
                v_cache,
                rows.slot_mapping,
                interleaved=config.rope_interleaved,
                q_out=rows.query,
            ),
            bound.paged_attention(
                rows.query,
                k_cache,
                v_cache,
                rows.block_table,
                rows.seq_lens,
                rows.query_start,
                scale=config.head_dim**-0.5,
                out=rows.attention,
            ),
            bound.linear(rows.attention.flatten(1), layer.attn_output, residual=rows.hidden, out=rows.hidden),
            bound.rms_norm(rows.hidden, layer.ffn_norm, config.rms_eps, out=rows.normed),
            bound.linear(rows.normed, layer.gate_up, out=rows.gate_up),
            bound.silu_mul(rows.gate_up, out=rows.activated),
            bound.linear(rows.activated, layer.ffn_down, residual=rows.hidden, out=rows.hidden),
        ]
