"""Runs the model over rows of several sequences: fills the fixed buffers, runs one native program, gives logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from engine.model.buffers import allocate_rows
from engine.model.llama import Llama, LlamaWeights
from engine.ops.bound import Program
from engine.state.paged_kv import PagedKVCache
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
        self,
        weights: LlamaWeights,
        cache: PagedKVCache,
        *,
        max_rows: int,
        max_logit_rows: int,
        max_sequences: int,
        max_positions: int,
        block_size: int,
    ) -> None:
        config = weights.config
        self.vocab_size = config.vocab_size
        self.max_rows = max_rows
        self.max_sequences = max_sequences
        self.max_logit_rows = max_logit_rows
        self._model = Llama(weights, cache, max_positions)
        self._rows = allocate_rows(
            max_rows,
            max_sequences,
            -(-max_positions // block_size),
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
        )
        self._head_hidden = torch.zeros(max_logit_rows, config.hidden_size)
        self._hidden_view, self._head_view = self._rows.hidden.numpy(), self._head_hidden.numpy()
        self._head_normed = torch.zeros(max_logit_rows, config.hidden_size)
        self._logits = torch.zeros(max_logit_rows, config.vocab_size)
        # The same memory as numpy arrays: writing a few integers through torch costs microseconds each.
        rows = self._rows
        self._token_ids = rows.token_ids.numpy()
        self._positions = rows.positions.numpy()
        self._slots = rows.slot_mapping.numpy()
        self._tables = rows.block_table.numpy()
        self._seq_lens = rows.seq_lens.numpy()
        self._query_start = rows.query_start.numpy()
        self._body = lru_cache(_MAX_PROGRAMS)(lambda count: Program(self._model.body(self._rows.first(count))))
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
        self._seq_lens[len(batch) :] = 0
        self._query_start[len(batch) + 1 :] = end

    def _pick_head_rows(self, batch: Sequence[SequenceRows]) -> None:
        row = picked = 0
        for rows in batch:
            row += len(rows.token_ids)
            last = picked + rows.num_logits
            self._head_view[picked:last] = self._hidden_view[row - rows.num_logits : row]
            picked = last

    def _bind_head(self, count: int) -> Program:
        return Program(self._model.head(self._head_hidden[:count], self._head_normed[:count], self._logits[:count]))
