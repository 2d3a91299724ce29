"""The fixed buffers of a forward: allocated once, filled in place, never moved, so that calls can be bound to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class RowBuffers:
    """Views of the first T rows. Inputs are integers; activations are float32 (T rows, B sequences).

    A sequence that a forward does not use has no rows: its ``query_start`` repeats, its ``seq_lens`` is 0.
    """

    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T]
    slot_mapping: torch.Tensor  # int64 [T]
    block_table: torch.Tensor  # int32 [B, max_blocks]
    seq_lens: torch.Tensor  # int32 [B]
    query_start: torch.Tensor  # int32 [B + 1]
    hidden: torch.Tensor  # [T, H]
    normed: torch.Tensor  # [T, H]
    qkv: torch.Tensor  # [T, (Hq + 2 Hkv) D]
    query: torch.Tensor  # [T, Hq, D]
    attention: torch.Tensor  # [T, Hq, D]
    gate_up: torch.Tensor  # [T, 2 I]
    activated: torch.Tensor  # [T, I]

    def first(self, rows: int) -> RowBuffers:
        """The same buffers, cut to ``rows`` rows; per-sequence buffers stay whole."""
        return RowBuffers(
            self.token_ids[:rows],
            self.positions[:rows],
            self.slot_mapping[:rows],
            self.block_table,
            self.seq_lens,
            self.query_start,
            self.hidden[:rows],
            self.normed[:rows],
            self.qkv[:rows],
            self.query[:rows],
            self.attention[:rows],
            self.gate_up[:rows],
            self.activated[:rows],
        )


def allocate_rows(
    max_rows: int,
    max_sequences: int,
    max_blocks: int,
    *,
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    intermediate_size: int,
) -> RowBuffers:
    """Buffers for ``max_rows`` rows of ``max_sequences`` sequences with ``max_blocks`` blocks each."""
    return RowBuffers(
        token_ids=torch.zeros(max_rows, dtype=torch.int32),
        positions=torch.zeros(max_rows, dtype=torch.int32),
        slot_mapping=torch.full((max_rows,), -1, dtype=torch.int64),
        block_table=torch.zeros(max_sequences, max_blocks, dtype=torch.int32),
        seq_lens=torch.zeros(max_sequences, dtype=torch.int32),
        query_start=torch.zeros(max_sequences + 1, dtype=torch.int32),
        hidden=torch.zeros(max_rows, hidden_size),
        normed=torch.zeros(max_rows, hidden_size),
        qkv=torch.zeros(max_rows, (num_heads + 2 * num_kv_heads) * head_dim),
        query=torch.zeros(max_rows, num_heads, head_dim),
        attention=torch.zeros(max_rows, num_heads, head_dim),
        gate_up=torch.zeros(max_rows, 2 * intermediate_size),
        activated=torch.zeros(max_rows, intermediate_size),
    )
