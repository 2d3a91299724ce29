"""What a forward reads: allocated once, filled in place, never moved, so that calls can be bound to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

PADDED_SEQUENCE = -1


@dataclass(frozen=True, slots=True, eq=False)
class RowInputs:
    """Integers that place T rows of up to B sequences.

    A sequence that a forward does not use has no rows: its ``query_start`` repeats, its ``seq_lens`` is 0 and its
    ``initial_slots`` is -1. The last two fields matter to recurrent layers alone.
    """

    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T]
    slot_mapping: torch.Tensor  # int64 [T]
    block_table: torch.Tensor  # int32 [B, max_blocks]
    seq_lens: torch.Tensor  # int32 [B]
    query_start: torch.Tensor  # int32 [B + 1]
    initial_slots: torch.Tensor  # int32 [B]: the recurrent state in front of a sequence's rows
    state_slots: torch.Tensor  # int32 [T]: where the state behind each row goes

    @classmethod
    def allocate(cls, max_rows: int, max_sequences: int, max_blocks: int) -> RowInputs:
        """Inputs of no rows at all."""
        return cls(
            token_ids=torch.zeros(max_rows, dtype=torch.int32),
            positions=torch.zeros(max_rows, dtype=torch.int32),
            slot_mapping=torch.full((max_rows,), -1, dtype=torch.int64),
            block_table=torch.zeros(max_sequences, max_blocks, dtype=torch.int32),
            seq_lens=torch.zeros(max_sequences, dtype=torch.int32),
            query_start=torch.zeros(max_sequences + 1, dtype=torch.int32),
            initial_slots=torch.full((max_sequences,), PADDED_SEQUENCE, dtype=torch.int32),
            state_slots=torch.full((max_rows,), -1, dtype=torch.int32),
        )

    def first(self, rows: int) -> RowInputs:
        """The same memory, cut to ``rows`` rows; what belongs to sequences stays whole."""
        return RowInputs(
            token_ids=self.token_ids[:rows],
            positions=self.positions[:rows],
            slot_mapping=self.slot_mapping[:rows],
            block_table=self.block_table,
            seq_lens=self.seq_lens,
            query_start=self.query_start,
            initial_slots=self.initial_slots,
            state_slots=self.state_slots[:rows],
        )
