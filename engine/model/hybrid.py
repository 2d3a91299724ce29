"""A hybrid decoder: Gated DeltaNet layers with a recurrent state, every few layers full attention over a KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.model.buffers import RowInputs
from engine.model.decoder import Forward, rope_table
from engine.model.hybrid_weights import AttentionWeights, GdnWeights, HybridLayer, HybridWeights
from engine.ops import bound
from engine.ops import gdn_reference as gdn
from engine.ops.bound import Program
from engine.state.paged_kv import PagedKVCache
from engine.state.recurrent import RecurrentStates

Piece = Callable[[], object]


class Hybrid:
    """The model over its two caches. Attention layers and GDN layers count their cache rows apart."""

    def __init__(
        self,
        weights: HybridWeights,
        cache: PagedKVCache,
        states: RecurrentStates,
        *,
        max_positions: int,
        max_rows: int,
    ) -> None:
        config = weights.config
        attention = config.attention
        self._config = config
        self._weights = weights
        self._cache = cache
        self._states = states
        self._cos_sin = rope_table(max_positions, attention.rotary_dim, attention.rope_theta)
        heads = attention.num_heads + 2 * attention.num_kv_heads
        self._scratch = _Scratch(
            normed=torch.zeros(max_rows, config.hidden_size),
            projected=torch.zeros(max_rows, config.gdn.conv_dim + config.gdn.values + 2 * config.gdn.value_heads),
            mixed=torch.zeros(max_rows, config.gdn.value_heads, config.gdn.value_dim),
            qkv=torch.zeros(max_rows, heads * attention.head_dim),
            gate=torch.zeros(max_rows, attention.num_heads * attention.head_dim),
            query=torch.zeros(max_rows, attention.num_heads, attention.head_dim),
            attended=torch.zeros(max_rows, attention.num_heads, attention.head_dim),
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

    def bind_body(self, inputs: RowInputs, hidden: torch.Tensor) -> Forward:
        """See `Decoder`."""
        scratch = self._scratch.first(len(hidden))
        pieces: list[Piece] = [bound.embedding(inputs.token_ids, self._weights.embedding, out=hidden)]
        recurrent = attention = 0
        for layer in self._weights.layers:
            pieces.append(bound.rms_norm(hidden, layer.mixer_norm, self._config.rms_eps, out=scratch.normed))
            if isinstance(layer.mixer, GdnWeights):
                pieces += self._gdn(recurrent, layer.mixer, inputs, hidden, scratch)
                recurrent += 1
            else:
                pieces += self._attention(attention, layer.mixer, inputs, hidden, scratch)
                attention += 1
            pieces.append(self._mlp(layer, hidden, scratch))

        def run() -> None:
            for piece in pieces:
                piece()

        return run

    def bind_head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> Program:
        """See `Decoder`."""
        norm = bound.rms_norm(hidden, self._weights.final_norm, self._config.rms_eps, out=normed)
        return Program([norm, bound.linear(normed, self._weights.head, out=logits)])

    def _gdn(
        self, index: int, weights: GdnWeights, inputs: RowInputs, hidden: torch.Tensor, scratch: _Scratch
    ) -> list[Piece]:
        sizes = self._config.gdn
        sections = [sizes.conv_dim, sizes.values, sizes.value_heads, sizes.value_heads]
        mixable, z, b, a = scratch.projected.split_with_sizes(sections, dim=1)
        conv_state, matrix = self._states.conv(index), self._states.matrix(index)
        slots = (inputs.initial_slots, inputs.state_slots, inputs.query_start)
        gate = _heads(z, sizes.value_dim)

        def mix() -> None:
            q, k, v = gdn.gdn_conv(mixable, weights.conv, conv_state, *slots).split_with_sizes(
                [sizes.keys, sizes.keys, sizes.values], dim=1
            )
            q, k, v = _heads(q, sizes.key_dim), _heads(k, sizes.key_dim), _heads(v, sizes.value_dim)
            log_decay, beta = gdn.gdn_gates(a, b, weights.a_log, weights.dt_bias)
            core = gdn.gdn_recurrent(q, k, v, log_decay, beta, matrix, *slots)
            scratch.mixed.copy_(gdn.gdn_gated_rms_norm(core, gate, weights.norm, self._config.rms_eps))

        return [
            bound.linear(scratch.normed, weights.in_proj, out=scratch.projected),
            mix,
            bound.linear(scratch.mixed.flatten(1), weights.out_proj, residual=hidden, out=hidden),
        ]

    def _attention(
        self, index: int, weights: AttentionWeights, inputs: RowInputs, hidden: torch.Tensor, scratch: _Scratch
    ) -> list[Piece]:
        sizes, eps = self._config.attention, self._config.rms_eps
        k_cache, v_cache = self._cache.keys(index), self._cache.values(index)
        heads = _heads(scratch.qkv, sizes.head_dim)
        calls = [bound.linear(scratch.normed, weights.qkv, out=scratch.qkv)]
        for head in range(sizes.num_heads + sizes.num_kv_heads):
            norm = weights.q_norm if head < sizes.num_heads else weights.k_norm
            calls.append(bound.rms_norm(heads[:, head], norm, eps, out=heads[:, head]))
        calls += [
            bound.rope_store_kv(
                scratch.qkv,
                self._cos_sin,
                inputs.positions,
                k_cache,
                v_cache,
                inputs.slot_mapping,
                interleaved=False,
                q_out=scratch.query,
            ),
            bound.paged_attention(
                scratch.query,
                k_cache,
                v_cache,
                inputs.block_table,
                inputs.seq_lens,
                inputs.query_start,
                scale=sizes.head_dim**-0.5,
                out=scratch.attended,
            ),
        ]
        attended = scratch.attended.flatten(1)
        out = bound.linear(attended, weights.out_proj, residual=hidden, out=hidden)
        if weights.gate is None:
            return [Program([*calls, out])]
        calls.append(bound.linear(scratch.normed, weights.gate, out=scratch.gate))

        def apply_gate() -> None:
            # Row by row: an element's bits would depend on the number of rows otherwise (see `gdn_reference`).
            for row, gate in zip(attended, scratch.gate, strict=True):
                row *= gate.sigmoid()

        return [Program(calls), apply_gate, out]

    def _mlp(self, layer: HybridLayer, hidden: torch.Tensor, scratch: _Scratch) -> Program:
        return Program(
            [
                bound.rms_norm(hidden, layer.mlp_norm, self._config.rms_eps, out=scratch.normed),
                bound.linear(scratch.normed, layer.gate_up, out=scratch.gate_up),
                bound.silu_mul(scratch.gate_up, out=scratch.activated),
                bound.linear(scratch.activated, layer.down, residual=hidden, out=hidden),
            ]
        )


def _heads(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """[T, N dim] -> [T, N, dim], a view."""
    return rows.view(len(rows), -1, dim)


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch:
    """Activations of T rows, float32; every layer writes over them."""

    normed: torch.Tensor  # [T, H]
    projected: torch.Tensor  # [T, q | k | v | z | b | a]
    mixed: torch.Tensor  # [T, Hv, dv]
    qkv: torch.Tensor  # [T, (Hq + 2 Hkv) D]
    gate: torch.Tensor  # [T, Hq D]
    query: torch.Tensor  # [T, Hq, D]
    attended: torch.Tensor  # [T, Hq, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]

    def first(self, rows: int) -> _Scratch:
        """The same memory, cut to ``rows`` rows."""
        return _Scratch(
            normed=self.normed[:rows],
            projected=self.projected[:rows],
            mixed=self.mixed[:rows],
            qkv=self.qkv[:rows],
            gate=self.gate[:rows],
            query=self.query[:rows],
            attended=self.attended[:rows],
            gate_up=self.gate_up[:rows],
            activated=self.activated[:rows],
        )
