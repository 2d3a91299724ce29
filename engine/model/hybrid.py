"""A hybrid decoder: Gated DeltaNet layers with a recurrent state, every few layers full attention over a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.linear.adapter import AdaptedLinear, physical_width
from engine.model.attention import Attention
from engine.model.buffers import RowInputs, TensorRows
from engine.model.decoder import Forward, rope_table
from engine.model.device import HOST, ModelDevice
from engine.model.hybrid_config import LayerKind
from engine.model.hybrid_weights import AttentionWeights, GdnWeights, HybridLayer, HybridWeights
from engine.model.taps import NO_TAPS, Taps
from engine.ops import bound
from engine.ops.bound import StateSlots, Step
from engine.parallel.layers import TensorParallel, single
from engine.state.paged_kv import PagedKVCache
from engine.state.recurrent import RecurrentStates


class Hybrid:
    """The model over its two caches; weights, caches and ``attention`` are on ``device``.

    Attention layers and GDN layers count their cache rows apart.
    """

    def __init__(
        self,
        weights: HybridWeights,
        cache: PagedKVCache,
        states: RecurrentStates,
        attention: Attention,
        *,
        max_positions: int,
        max_rows: int,
        device: ModelDevice = HOST,
        parallel: TensorParallel | None = None,
    ) -> None:
        """``parallel``: the ranks that share the model, of which ``weights`` are one's; None for a whole model."""
        config, gdn, sizes = weights.config, weights.config.gdn, weights.config.attention
        self._config = config
        self._parallel = parallel or single(config.vocab_size)
        self._weights = weights
        self._head = self._parallel.head(weights.head)
        self._projections = [projection for layer in weights.layers for projection in layer.projections]
        self._cache = cache
        self._states = states
        self._attend = attention
        self._device = device
        self._cos_sin = device.vector(rope_table(max_positions, sizes.rotary_dim, sizes.rope_theta))
        width = partial(physical_width, self._projections)
        self._scratch = _Scratch(
            normed=device.zeros(max_rows, config.hidden_size),
            projected=device.zeros(max_rows, width("gdn in")),
            convolved=device.zeros(max_rows, gdn.conv_dim),
            log_decay=device.zeros(max_rows, gdn.value_heads, dtype=torch.float32),
            beta=device.zeros(max_rows, gdn.value_heads, dtype=torch.float32),
            core=device.zeros(max_rows, gdn.value_heads, gdn.value_dim),
            mixed=device.zeros(max_rows, gdn.value_heads, gdn.value_dim),
            qkv=device.zeros(max_rows, width("attention qkv")),
            gate=device.zeros(max_rows, width("attention gate")),
            query=device.zeros(max_rows, sizes.num_heads, sizes.head_dim),
            attended=device.zeros(max_rows, sizes.num_heads, sizes.head_dim),
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
        return self._config.layers.count(LayerKind.ATTENTION)

    @property
    def projections(self) -> Sequence[AdaptedLinear]:
        """See `Decoder`."""
        return self._projections

    def bind_body(self, inputs: RowInputs, hidden: torch.Tensor, *, prefill: bool, taps: Taps = NO_TAPS) -> Forward:
        """See `Decoder`."""
        scratch = self._scratch.first(len(hidden))
        steps = self._parallel.embedding(inputs.token_ids, self._weights.embedding, out=hidden)
        recurrent = attention = 0
        for index, layer in enumerate(self._weights.layers):
            steps.append(bound.rms_norm(hidden, layer.mixer_norm, self._config.rms_eps, out=scratch.normed))
            if isinstance(layer.mixer, GdnWeights):
                # The CPU's answer must not depend on how a prompt is cut; in chunks the rounding would.
                chunked = prefill and self._device.runs_kernels
                steps += self._gdn(recurrent, layer.mixer, inputs, hidden, scratch, chunked)
                recurrent += 1
            else:
                steps += self._attention(attention, layer.mixer, inputs, hidden, scratch)
                attention += 1
            steps += self._mlp(layer, hidden, scratch)
            steps += taps.behind(index, hidden)
        return bound.program(steps)

    def bind_head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> Forward:
        """See `Decoder`."""
        norm = bound.rms_norm(hidden, self._weights.final_norm, self._config.rms_eps, out=normed)
        return bound.program([norm, *self._head.bind(normed, logits)])

    def _gdn(
        self,
        index: int,
        weights: GdnWeights,
        inputs: RowInputs,
        hidden: torch.Tensor,
        scratch: _Scratch,
        chunked: bool,
    ) -> list[Step]:
        sizes = self._config.gdn
        sections = [sizes.conv_dim, sizes.values, sizes.value_heads, sizes.value_heads]
        mixable, z, b, a = weights.in_proj.logical(scratch.projected).split_with_sizes(sections, dim=1)
        q, k, v = scratch.convolved.split_with_sizes([sizes.keys, sizes.keys, sizes.values], dim=1)
        heads = (_heads(q, sizes.key_dim), _heads(k, sizes.key_dim), _heads(v, sizes.value_dim))
        gates = (scratch.log_decay, scratch.beta)
        conv_state, matrix = self._states.conv(index), self._states.matrix(index)
        core, mixed = scratch.core, scratch.mixed
        slots = StateSlots(inputs.initial_slots, inputs.state_slots, inputs.query_start)
        return [
            *weights.in_proj.bind(scratch.normed, scratch.projected),
            bound.gdn_conv(mixable, weights.conv, conv_state, slots, out=scratch.convolved),
            bound.gdn_gates(a, b, weights.a_log, weights.dt_bias, log_decay=scratch.log_decay, beta=scratch.beta),
            bound.gdn_rule(*heads, gates, matrix, slots, chunked=chunked, out=core),
            bound.gdn_gated_rms_norm(core, _heads(z, sizes.value_dim), weights.norm, self._config.rms_eps, out=mixed),
            *self._parallel.add_linear(mixed.flatten(1), weights.out_proj, hidden),
        ]

    def _attention(
        self, index: int, weights: AttentionWeights, inputs: RowInputs, hidden: torch.Tensor, scratch: _Scratch
    ) -> list[Step]:
        sizes, eps = self._config.attention, self._config.rms_eps
        k_cache, v_cache = self._cache.keys(index), self._cache.values(index)
        qkv = weights.qkv.logical(scratch.qkv)
        heads = _heads(qkv, sizes.head_dim)
        steps = weights.qkv.bind(scratch.normed, scratch.qkv)
        for head in range(sizes.num_heads + sizes.num_kv_heads):
            norm = weights.q_norm if head < sizes.num_heads else weights.k_norm
            steps.append(bound.rms_norm(heads[:, head], norm, eps, out=heads[:, head]))
        steps += [
            bound.rope_store_kv(
                qkv,
                self._cos_sin,
                inputs.positions,
                k_cache,
                v_cache,
                inputs.slot_mapping,
                interleaved=False,
                q_out=scratch.query,
            ),
            self._attend.layer(scratch.query, k_cache, v_cache, inputs, out=scratch.attended),
        ]
        attended = scratch.attended.flatten(1)
        if weights.gate is not None:
            steps += [
                *weights.gate.bind(scratch.normed, scratch.gate),
                bound.sigmoid_gate(attended, weights.gate.logical(scratch.gate)),
            ]
        return [*steps, *self._parallel.add_linear(attended, weights.out_proj, hidden)]

    def _mlp(self, layer: HybridLayer, hidden: torch.Tensor, scratch: _Scratch) -> list[Step]:
        return [
            bound.rms_norm(hidden, layer.mlp_norm, self._config.rms_eps, out=scratch.normed),
            *layer.gate_up.bind(scratch.normed, scratch.gate_up),
            bound.silu_mul(layer.gate_up.logical(scratch.gate_up), out=scratch.activated),
            *self._parallel.add_linear(scratch.activated, layer.down, hidden),
        ]


def _heads(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """[T, N dim] -> [T, N, dim], a view."""
    return rows.view(len(rows), -1, dim)


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch(TensorRows):
    """Activations of T rows; every layer writes over them."""

    normed: torch.Tensor  # [T, H]
    projected: torch.Tensor  # [T, q | k | v | z | b | a, padding]
    convolved: torch.Tensor  # [T, q | k | v]
    log_decay: torch.Tensor  # float32 [T, Hv]
    beta: torch.Tensor  # float32 [T, Hv]
    core: torch.Tensor  # [T, Hv, dv]: what the rule gives
    mixed: torch.Tensor  # [T, Hv, dv]: the same, normed and gated
    qkv: torch.Tensor  # [T, (Hq + 2 Hkv) D]
    gate: torch.Tensor  # [T, Hq D]
    query: torch.Tensor  # [T, Hq, D]
    attended: torch.Tensor  # [T, Hq, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]
