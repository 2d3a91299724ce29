"""Runs a model over rows of several sequences: fills the fixed buffers, runs what is bound to them, gives logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from engine.model.buffers import PADDED_SEQUENCE, RowInputs
from engine.model.decoder import Decoder, Forward
from engine.state.sequence import Reservation

# Programs kept by row count: every verify width, and the odd ends of prefill chunks.
_MAX_PROGRAMS = 96


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """What one sequence puts into a forward. The logits of its last ``num_logits`` rows are wanted."""

    token_ids: Sequence[int]
    reservation: Reservation
    block_table: Sequence[int]
    num_logits: int

    def __post_init__(self) -> None:
        if len(self.token_ids) != self.reservation.count:
            raise ValueError(f"{len(self.token_ids)} tokens for {self.reservation.count} reserved rows")
        if not 0 <= self.num_logits <= len(self.token_ids):
            raise ValueError(f"logits of {self.num_logits} rows asked for; allowed: 0 to {len(self.token_ids)}")


class ModelRunner:
    """A model with its buffers. ``forward`` allocates nothing but the programs of row counts it has not seen."""

    def __init__(
        self, model: Decoder, *, max_rows: int, max_logit_rows: int, max_sequences: int, max_blocks: int
    ) -> None:
        """Allocate for forwards of up to ``max_rows`` rows of ``max_sequences`` sequences of ``max_blocks`` blocks."""
        self.vocab_size = model.vocab_size
        self.max_rows = max_rows
        self.max_sequences = max_sequences
        self.max_logit_rows = max_logit_rows
        self._model = model
        self._inputs = RowInputs.allocate(max_rows, max_sequences, max_blocks)
        self._hidden = torch.zeros(max_rows, model.hidden_size)
        self._head_hidden = torch.zeros(max_logit_rows, model.hidden_size)
        self._head_normed = torch.zeros(max_logit_rows, model.hidden_size)
        self._logits = torch.zeros(max_logit_rows, model.vocab_size)
        # The same memory as numpy arrays: writing a few integers through torch costs microseconds each.
        self._token_ids = self._inputs.token_ids.numpy()
        self._positions = self._inputs.positions.numpy()
        self._slots = self._inputs.slot_mapping.numpy()
        self._tables = self._inputs.block_table.numpy()
        self._seq_lens = self._inputs.seq_lens.numpy()
        self._query_start = self._inputs.query_start.numpy()
        self._initial_slots = self._inputs.initial_slots.numpy()
        self._state_slots = self._inputs.state_slots.numpy()
        self._hidden_view, self._head_view = self._hidden.numpy(), self._head_hidden.numpy()
        self._body = lru_cache(_MAX_PROGRAMS)(self._bind_body)
        self._head = lru_cache(_MAX_PROGRAMS)(self._bind_head)

    def forward(self, batch: Sequence[SequenceRows]) -> torch.Tensor:
        """Compute all rows; keys and values go to the reserved slots.

        Returns the wanted logits, float32 ``[sum of num_logits, vocab]``, in the order of the batch: a view of a fixed
        buffer, valid until the next forward. Raises ``ValueError`` for more rows or sequences than were allocated.
        """
        total = sum(len(rows.token_ids) for rows in batch)
        wanted = sum(rows.num_logits for rows in batch)
        if not 1 <= total <= self.max_rows or wanted > self.max_logit_rows or len(batch) > self.max_sequences:
            raise ValueError(
                f"{len(batch)} sequences with {total} rows and {wanted} logit rows; allowed: up to "
                f"{self.max_sequences}, {self.max_rows} and {self.max_logit_rows}, and at least one row"
            )
        self._fill(batch)
        self._body(total)()
        if not wanted:
            return self._logits[:0]
        self._pick_head_rows(batch)
        self._head(wanted)()
        return self._logits[:wanted]

    def _fill(self, batch: Sequence[SequenceRows]) -> None:
        end = 0
        for index, rows in enumerate(batch):
            start, end = end, end + len(rows.token_ids)
            first = rows.reservation.start
            length = first + len(rows.token_ids)
            self._token_ids[start:end] = rows.token_ids
            self._positions[start:end] = range(first, length)
            self._slots[start:end] = rows.reservation.slot_mapping
            self._tables[index, : len(rows.block_table)] = rows.block_table
            self._seq_lens[index] = length
            self._query_start[index + 1] = end
            if rows.reservation.states is not None:
                self._initial_slots[index] = rows.reservation.states.read
                self._state_slots[start:end] = rows.reservation.states.write
        self._seq_lens[len(batch) :] = 0
        self._initial_slots[len(batch) :] = PADDED_SEQUENCE
        self._query_start[len(batch) + 1 :] = end

    def _pick_head_rows(self, batch: Sequence[SequenceRows]) -> None:
        row = picked = 0
        for rows in batch:
            row += len(rows.token_ids)
            last = picked + rows.num_logits
            self._head_view[picked:last] = self._hidden_view[row - rows.num_logits : row]
            picked = last

    def _bind_body(self, count: int) -> Forward:
        return self._model.bind_body(self._inputs.first(count), self._hidden[:count])

    def _bind_head(self, count: int) -> Forward:
        return self._model.bind_head(self._head_hidden[:count], self._head_normed[:count], self._logits[:count])
