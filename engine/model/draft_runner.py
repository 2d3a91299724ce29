"""Runs a DFlash2 model for several sequences: fixed buffers, filled in place, and what is bound to them.

The draft's cache has the block ids of the target's: a sequence's block table and slots serve both, and what a known
beginning is worth to the target it is worth to the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from engine.model.decoder import Forward
from engine.model.dflash2 import BlockInputs, DFlash2
from engine.model.runner import SequenceRows
from engine.model.selector import Lattice, build_lattice
from engine.state.sequence import Reservation

PAD = -1

# Programs kept by row count, as the target's runner does.
_MAX_PROGRAMS = 96


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """One sequence to draft for: its anchor, room for a whole block at its end, and where its cache blocks are."""

    anchor: int
    reservation: Reservation
    block_table: Sequence[int]


class DraftRunner:
    """A draft model with its buffers. ``compute_context`` and ``store_context`` follow every forward of the target."""

    def __init__(self, model: DFlash2, taps: torch.Tensor, *, max_sequences: int, max_blocks: int) -> None:
        """``taps`` f32 [max_rows, taps * H] is where the target's forward leaves its rows."""
        config = model.config
        self.model = model
        self.block_size = config.block_size
        self.max_drafts = config.max_drafts
        self.max_sequences = max_sequences
        self._context = model.allocate_context(len(taps), taps)
        self._slots = torch.full((len(taps),), PAD, dtype=torch.int64)
        self._inputs = BlockInputs.allocate(max_sequences, config.block_size, max_blocks)
        self._outputs = model.allocate_outputs(max_sequences)
        self._computed: Sequence[SequenceRows] | None = None
        self._bound_context = lru_cache(_MAX_PROGRAMS)(self._bind_context)
        self._bound_blocks = lru_cache(max_sequences)(self._bind_blocks)

    def compute_context(self, batch: Sequence[SequenceRows]) -> None:
        """Features, keys and values of every row that the target's last forward, of ``batch``, left at the taps.

        Nothing reaches the cache yet, and nothing depends on which rows will be accepted.
        """
        rows = 0
        positions = self._context.positions.numpy()
        for one in batch:
            start, count = one.reservation.start, len(one.token_ids)
            positions[rows : rows + count] = range(start, start + count)
            rows += count
        self._bound_context(rows)()
        self._computed = batch

    def store_context(self, batch: Sequence[SequenceRows], kept: Sequence[int]) -> None:
        """The first ``kept[i]`` rows of sequence i into its cache slots; the others are PAD and leave nothing.

        Raises ``RuntimeError`` unless ``batch`` is the very batch that was computed last, and for a second time: what
        the buffers hold would be another round's.
        """
        if self._computed is not batch:
            seen = "none" if self._computed is None else "another one"
            raise RuntimeError(f"the context of {seen} is computed, not of this batch; compute it after its forward")
        self._computed = None
        rows = 0
        slots = self._slots.numpy()
        for one, count in zip(batch, kept, strict=True):
            end = rows + len(one.token_ids)
            slots[rows : rows + count] = one.reservation.slot_mapping[:count]
            slots[rows + count : end] = PAD
            rows = end
        self.model.store_context(self._context.first(rows), self._slots[:rows])

    def draft(self, batch: Sequence[DraftBlock]) -> Lattice:
        """One forward of ``[anchor, mask x K]`` for each sequence. Its cache rows are scratch: see `store_context`."""
        if not 1 <= len(batch) <= self.max_sequences:
            raise ValueError(f"{len(batch)} blocks to draft; allowed: 1 to {self.max_sequences}")
        size, inputs = self.block_size, self._inputs
        tokens, positions = inputs.token_ids.numpy(), inputs.positions.numpy()
        for index, one in enumerate(batch):
            rows = slice(index * size, (index + 1) * size)
            start = one.reservation.start
            tokens[rows] = self.model.config.mask_token_id
            tokens[rows.start] = one.anchor
            positions[rows] = range(start, start + size)
            inputs.slot_mapping.numpy()[rows] = one.reservation.slot_mapping[:size]
            inputs.block_table.numpy()[index, : len(one.block_table)] = one.block_table
            inputs.seq_lens.numpy()[index] = start + size
        self._bound_blocks(len(batch))()
        outputs = self._outputs.first(len(batch) * self.max_drafts)
        return build_lattice(self.model, [one.anchor for one in batch], outputs)

    def _bind_context(self, rows: int) -> Forward:
        return self.model.bind_context(self._context.first(rows))

    def _bind_blocks(self, blocks: int) -> Forward:
        rows = blocks * self.max_drafts
        return self.model.bind_blocks(self._inputs.first(blocks), self._outputs.first(rows))
