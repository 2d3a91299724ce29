"""Runs a DFlash2 model for several sequences: fixed buffers, filled in place, and what is bound to them.

The draft's cache has the block ids of the target's: a sequence's block table and slots serve both, and what a known
prefix is worth to the target it is worth to the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from engine.model.buffers import StagedInputs
from engine.model.decoder import Forward
from engine.model.dflash2 import DFlash2
from engine.model.graphs import ForwardGraphs
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
    """A draft model with its buffers. ``compute_context`` and ``store_context`` follow every forward of the target.

    ``graphs``: blocks are drafted in CUDA graphs where the device has them; ``context_graphs``: the context's
    computation and its store too, a graph for each exact number of rows.
    """

    def __init__(
        self,
        model: DFlash2,
        taps: torch.Tensor,
        *,
        max_sequences: int,
        max_blocks: int,
        graphs: bool = True,
        context_graphs: bool = False,
    ) -> None:
        """``taps`` [max_rows, taps * H] is where the target's forward leaves its rows."""
        config, device = model.config, model.device.device
        self.model = model
        self.block_size = config.block_size
        self.max_drafts = config.max_drafts
        self.max_sequences = max_sequences
        self._staged_context = StagedInputs(len(taps), 1, 1, 1, device)
        self._staged_blocks = StagedInputs(max_sequences * config.block_size, 1, max_sequences, max_blocks, device)
        self._inputs = self._staged_blocks.host
        self._context = model.allocate_context(taps, self._staged_context.device.positions)
        self._outputs = model.allocate_outputs(max_sequences)
        self._computed: Sequence[SequenceRows] | None = None
        self._bound_context = lru_cache(_MAX_PROGRAMS)(self._bind_context)
        self._bound_store = lru_cache(_MAX_PROGRAMS)(self._bind_store)
        self._bound_blocks = lru_cache(max_sequences)(self._bind_blocks)
        # Pools of their own: what a context's graph leaves must outlive the graphs that run in between.
        captures = graphs and device.type == "cuda"
        self._block_graphs = ForwardGraphs(device) if captures else None
        self._context_graphs = ForwardGraphs(device) if captures and context_graphs else None

    def compute_context(self, batch: Sequence[SequenceRows]) -> None:
        """Features, keys and values of every row that the target's last forward, of ``batch``, left at the taps.

        Nothing reaches the cache yet, and nothing depends on which rows will be accepted.
        """
        staged, rows = self._staged_context, 0
        staged.wait_until_writable()
        positions = staged.host.positions.numpy()
        for one in batch:
            start, count = one.reservation.start, len(one.token_ids)
            positions[rows : rows + count] = range(start, start + count)
            rows += count
        staged.upload_no_sync()
        _run(self._context_graphs, ("compute", rows), self._bound_context(rows))
        self._computed = batch

    def holds(self, batch: Sequence[SequenceRows]) -> bool:
        """Whether the context of this very batch is computed and not yet stored."""
        return self._computed is batch

    def store_context(self, batch: Sequence[SequenceRows], kept: Sequence[int]) -> None:
        """The first ``kept[i]`` rows of sequence i into its cache slots; the others are PAD and leave nothing.

        Raises ``RuntimeError`` unless ``batch`` is the very batch that was computed last, and for a second time: what
        the buffers hold would be another round's.
        """
        if not self.holds(batch):
            seen = "none" if self._computed is None else "another one"
            raise RuntimeError(f"the context of {seen} is computed, not of this batch; compute it after its forward")
        self._computed = None
        staged, rows = self._staged_context, 0
        staged.wait_until_writable()
        slots = staged.host.slot_mapping.numpy()
        for one, count in zip(batch, kept, strict=True):
            end = rows + len(one.token_ids)
            slots[rows : rows + count] = one.reservation.slot_mapping[:count]
            slots[rows + count : end] = PAD
            rows = end
        staged.upload_no_sync()
        _run(self._context_graphs, ("store", rows), self._bound_store(rows))

    def draft(self, batch: Sequence[DraftBlock]) -> Lattice:
        """One forward of ``[anchor, mask x K]`` for each sequence. Its cache rows are scratch: see `store_context`."""
        if not 1 <= len(batch) <= self.max_sequences:
            raise ValueError(f"{len(batch)} blocks to draft; allowed: 1 to {self.max_sequences}")
        self._staged_blocks.wait_until_writable()
        self._fill(batch)
        self._staged_blocks.upload_no_sync()
        _run(self._block_graphs, len(batch), self._bound_blocks(len(batch)))
        outputs = self._outputs.first(len(batch) * self.max_drafts)
        return build_lattice(self.model, [one.anchor for one in batch], outputs)

    def _fill(self, batch: Sequence[DraftBlock]) -> None:
        """All of the captured batch: what lies after the sequences of this one must be nobody's."""
        size, inputs = self.block_size, self._inputs
        tokens, positions, slots = inputs.token_ids.numpy(), inputs.positions.numpy(), inputs.slot_mapping.numpy()
        tables, lengths, starts = inputs.block_table.numpy(), inputs.seq_lens.numpy(), inputs.query_start.numpy()
        for index, one in enumerate(batch):
            rows = slice(index * size, (index + 1) * size)
            start = one.reservation.start
            tokens[rows] = self.model.config.mask_token_id
            tokens[rows.start] = one.anchor
            positions[rows] = range(start, start + size)
            slots[rows] = one.reservation.slot_mapping[:size]
            tables[index, : len(one.block_table)] = one.block_table
            lengths[index] = start + size
            starts[index + 1] = rows.stop
        lengths[len(batch) :] = 0
        starts[len(batch) + 1 :] = len(batch) * size

    def _bind_context(self, rows: int) -> Forward:
        return self.model.bind_context(self._context.first(rows))

    def _bind_store(self, rows: int) -> Forward:
        return self.model.bind_store(self._context.first(rows), self._staged_context.device.slot_mapping[:rows])

    def _bind_blocks(self, blocks: int) -> Forward:
        inputs = self._staged_blocks.device.first(blocks * self.block_size)
        return self.model.bind_blocks(inputs, self._outputs.first(blocks * self.max_drafts))


def _run(graphs: ForwardGraphs | None, shape: Hashable, forward: Callable[[], object]) -> None:
    """``forward`` as it is, or from its graph at the second sight of its shape."""
    if graphs is not None and graphs.knows(shape):
        graphs.run(shape, forward)
        return
    forward()
    if graphs is not None:
        graphs.note(shape)
