"""The DFlash2 draft model: one forward over ``[anchor, mask x K]`` drafts a whole block.

The context is what the target said: the residual stream after some of its layers (the taps), joined by ``fc`` and a
norm to one feature row per token. Each draft layer makes keys and values of it directly; the context passes no input
norm, no convolution, no MLP. The block's own rows go through the layers, attend without a causal mask to the context
and to each other, and a row predicts the token at its *own* position. Their keys and values lie in the cache slots
after the context only for the length of the forward: the accepted tokens' context overwrites them.

Around each sublayer runs a grouped dynamic convolution over the rows of one block. Both of its sides, before the
sublayer and after it, take their coefficients from the sublayer's normed input.

A row's bits depend on its own block and context, never on other rows: the native ops promise that, and what is plain
torch here is single additions and multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model.buffers import RowInputs, TensorRows
from engine.model.decoder import Forward, rope_table
from engine.model.device import HOST, ModelDevice
from engine.model.dflash2_config import DFlash2Config
from engine.model.dflash2_weights import ConvWeights, DFlash2Weights, DraftLayer
from engine.ops import bound
from engine.ops.bound import Step
from engine.ops.functional import FULL_WINDOW, Weight
from engine.ops.reference import rotate
from engine.state.paged_kv import PagedKVCache


@dataclass(frozen=True, slots=True, eq=False)
class ContextRows(TensorRows):
    """Context of T tokens: what it is made from and what is made of it, activations; every forward writes over it."""

    taps: torch.Tensor  # [T, taps * H]
    positions: torch.Tensor  # int32 [T]
    features: torch.Tensor  # [T, H]
    keys_values: torch.Tensor  # [T, layers * 2 * kv_heads * D]
    keys: torch.Tensor  # [T, layers, kv_heads, D], turned


@dataclass(frozen=True, slots=True, eq=False)
class BlockOutputs(TensorRows):
    """What the drafted rows of B blocks come to, M = B * K rows."""

    hidden: torch.Tensor  # activations [M, H], after the final norm
    logits: torch.Tensor  # float32 [M, V], of the target's head, as it gives them
    gates: torch.Tensor  # activations [M, rank], of the selector


class DFlash2:
    """The draft model over its own KV cache, with the embedding and the head of its target; all are on ``device``."""

    def __init__(
        self,
        weights: DFlash2Weights,
        cache: PagedKVCache,
        *,
        embedding: Weight,
        head: Weight,
        max_positions: int,
        max_blocks: int,
        device: ModelDevice = HOST,
    ) -> None:
        """``max_positions`` positions can be turned; forwards take up to ``max_blocks`` blocks of drafts."""
        config, weights = weights.config, weights.on(device)
        self.config = config
        self.device = device
        self.cache = cache
        self.predecessors, self.successors = weights.predecessors, weights.successors
        self._weights = weights
        self._embedding, self._head = embedding, head
        self._query_width = config.num_heads * config.head_dim
        # All layers read the same features, so their key and value projections are one product.
        self._context_kv = torch.cat([layer.qkv[self._query_width :] for layer in weights.layers])
        self._cos_sin = device.vector(rope_table(max_positions, config.head_dim, config.rope_theta))
        self._scratch = _Scratch.allocate(config, max_blocks * config.block_size, device)

    def allocate_context(self, taps: torch.Tensor, positions: torch.Tensor) -> ContextRows:
        """Room for the context of as many tokens as there are ``taps``, where the target leaves its rows."""
        config, rows = self.config, len(taps)
        return ContextRows(
            taps=taps,
            positions=positions,
            features=self.device.zeros(rows, config.hidden_size),
            keys_values=self.device.zeros(rows, len(self._context_kv)),
            keys=self.device.zeros(rows, config.num_layers, config.num_kv_heads, config.head_dim),
        )

    def allocate_outputs(self, blocks: int) -> BlockOutputs:
        """Room for the drafted rows of ``blocks`` blocks."""
        config, rows = self.config, blocks * self.config.max_drafts
        return BlockOutputs(
            hidden=self.device.zeros(rows, config.hidden_size),
            logits=self.device.zeros(rows, config.vocab_size, dtype=torch.float32),
            gates=self.device.zeros(rows, config.selector_rank),
        )

    def bind_context(self, rows: ContextRows) -> Forward:
        """From tap rows to features, keys and values; nothing reaches the cache."""
        config, eps = self.config, self.config.rms_eps
        shape = (len(rows.features), config.num_layers, 2, config.num_kv_heads, config.head_dim)
        keys = rows.keys_values.view(shape)[:, :, 0]
        steps = [
            bound.linear(rows.taps, self._weights.fc, out=rows.features),
            bound.rms_norm(rows.features, self._weights.hidden_norm, eps, out=rows.features),
            bound.linear(rows.features, self._context_kv, out=rows.keys_values),
        ]
        for index, layer in enumerate(self._weights.layers):
            for head in range(config.num_kv_heads):
                one = keys[:, index, head]
                steps.append(bound.rms_norm(one, layer.k_norm, eps, out=one))

        def turn() -> None:
            table = self._cos_sin[rows.positions.long(), None]
            turned = rotate(keys.flatten(1, 2), table, interleaved=config.rope_interleaved)
            rows.keys.copy_(turned.view(rows.keys.shape))

        return bound.program([*steps, turn])

    def bind_store(self, rows: ContextRows, slot_mapping: torch.Tensor) -> Forward:
        """Keys and values of ``rows`` into their cache slots, int64 [T]; a row with slot -1 (PAD) leaves nothing."""
        config = self.config
        shape = (len(rows.features), config.num_layers, 2, config.num_kv_heads, config.head_dim)
        values = rows.keys_values.view(shape)[:, :, 1]
        return bound.program(
            [
                bound.store_kv(
                    rows.keys[:, index],
                    values[:, index],
                    self.cache.keys(index),
                    self.cache.values(index),
                    slot_mapping,
                )
                for index in range(config.num_layers)
            ]
        )

    def bind_blocks(self, inputs: RowInputs, outputs: BlockOutputs) -> Forward:
        """From the block's token ids to the outputs of its drafted rows; overwrites the block's cache slots."""
        config, weights = self.config, self._weights
        scratch = self._scratch.first(len(inputs.token_ids))
        blocks = scratch.hidden.view(-1, config.block_size, config.hidden_size)
        drafted = outputs.hidden.view(-1, config.max_drafts, config.hidden_size)

        def scale() -> None:
            scratch.hidden.mul_(config.embedding_scale)

        def pick_drafted_rows() -> None:
            drafted.copy_(blocks[:, 1:])

        steps: list[Step] = [bound.embedding(inputs.token_ids, self._embedding, out=scratch.hidden)]
        if config.embedding_scale != 1:
            steps.append(scale)
        for index, layer in enumerate(weights.layers):
            steps += self._attention(index, layer, inputs, scratch)
            steps += self._mlp(layer, scratch)
        steps += [
            pick_drafted_rows,
            bound.rms_norm(outputs.hidden, weights.final_norm, config.rms_eps, out=outputs.hidden),
            bound.head(outputs.hidden, self._head, out=outputs.logits),
            bound.linear(outputs.hidden, weights.selector_hidden, out=outputs.gates),
        ]
        return bound.program(steps)

    def _attention(self, index: int, layer: DraftLayer, inputs: RowInputs, scratch: _Scratch) -> list[Step]:
        config, eps = self.config, self.config.rms_eps
        k_cache, v_cache = self.cache.keys(index), self.cache.values(index)
        window = config.windows[index]
        heads = scratch.qkv.view(len(scratch.qkv), -1, config.head_dim)
        steps = [
            bound.rms_norm(scratch.hidden, layer.input_norm, eps, out=scratch.normed),
            *self._convolved_input(layer.attention_conv, scratch),
            bound.linear(scratch.convolved, layer.qkv, out=scratch.qkv),
        ]
        for head in range(config.num_heads + config.num_kv_heads):
            norm = layer.q_norm if head < config.num_heads else layer.k_norm
            steps.append(bound.rms_norm(heads[:, head], norm, eps, out=heads[:, head]))
        return [
            *steps,
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
                causal=False,
                window=FULL_WINDOW if window is None else (window - 1, window - 1),
                out=scratch.attended,
            ),
            bound.linear(scratch.attended.flatten(1), layer.out_proj, out=scratch.sublayer),
            self._add_convolved_output(layer.attention_conv, scratch),
        ]

    def _mlp(self, layer: DraftLayer, scratch: _Scratch) -> list[Step]:
        return [
            bound.rms_norm(scratch.hidden, layer.mlp_norm, self.config.rms_eps, out=scratch.normed),
            *self._convolved_input(layer.mlp_conv, scratch),
            bound.linear(scratch.convolved, layer.gate_up, out=scratch.gate_up),
            bound.silu_mul(scratch.gate_up, out=scratch.activated),
            bound.linear(scratch.activated, layer.down, out=scratch.sublayer),
            self._add_convolved_output(layer.mlp_conv, scratch),
        ]

    def _convolved_input(self, conv: ConvWeights, scratch: _Scratch) -> list[Step]:
        def convolve() -> None:
            scratch.convolved.copy_(self._convolve(scratch.normed, scratch.coefficients, conv.base, side=0))

        return [bound.linear(scratch.normed, conv.projection, out=scratch.coefficients), convolve]

    def _add_convolved_output(self, conv: ConvWeights, scratch: _Scratch) -> Step:
        def add() -> None:
            scratch.hidden.add_(self._convolve(scratch.sublayer, scratch.coefficients, conv.base, side=1))

        return add

    def _convolve(self, x: torch.Tensor, coefficients: torch.Tensor, base: torch.Tensor, side: int) -> torch.Tensor:
        """One side of the convolution over ``x`` [T, H] within each trained block; ``base`` [2, taps, H]."""
        config = self.config
        taps, groups, size = config.conv_kernel, config.conv_groups, config.conv_group
        rows = x.view(-1, config.block_size, groups, size)
        delta = coefficients.view(-1, config.block_size, 2, taps, groups, 1)[:, :, side]
        fixed = base[side].view(taps, groups, size)
        out = (fixed[0] + delta[:, :, 0]) * rows
        for tap in range(1, taps):
            # A row's tap looks back within its block: before the anchor there is nothing.
            out[:, tap:].add_((fixed[tap] + delta[:, tap:, tap]) * rows[:, :-tap])
        return out.view(x.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Scratch(TensorRows):
    """Activations of T rows; every layer writes over them."""

    hidden: torch.Tensor  # [T, H], the residual stream
    normed: torch.Tensor  # [T, H], a sublayer's input
    coefficients: torch.Tensor  # [T, 2 * taps * groups]
    convolved: torch.Tensor  # [T, H]
    qkv: torch.Tensor  # [T, (heads + 2 kv_heads) D]
    query: torch.Tensor  # [T, heads, D]
    attended: torch.Tensor  # [T, heads, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]
    sublayer: torch.Tensor  # [T, H], a sublayer's output

    @classmethod
    def allocate(cls, config: DFlash2Config, rows: int, device: ModelDevice) -> _Scratch:
        heads = config.num_heads + 2 * config.num_kv_heads
        return cls(
            hidden=device.zeros(rows, config.hidden_size),
            normed=device.zeros(rows, config.hidden_size),
            coefficients=device.zeros(rows, 2 * config.conv_kernel * config.conv_groups),
            convolved=device.zeros(rows, config.hidden_size),
            qkv=device.zeros(rows, heads * config.head_dim),
            query=device.zeros(rows, config.num_heads, config.head_dim),
            attended=device.zeros(rows, config.num_heads, config.head_dim),
            gate_up=device.zeros(rows, 2 * config.intermediate_size),
            activated=device.zeros(rows, config.intermediate_size),
            sublayer=device.zeros(rows, config.hidden_size),
        )
