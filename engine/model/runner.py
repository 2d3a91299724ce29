"""Runs a model over rows of several sequences: fills the fixed buffers, runs what is bound to them, gives logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from engine.linear.adapter import KernelCounters
from engine.model.attention import Attention, BatchShape
from engine.model.buffers import PADDED_SEQUENCE, StagedInputs
from engine.model.decoder import Decoder, Forward
from engine.model.device import HOST, ModelDevice
from engine.model.graphs import ForwardGraphs
from engine.model.taps import Taps
from engine.ops.sampling import bind_greedy
from engine.routing import Phase
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


Announce = Callable[[Sequence[SequenceRows], bool], None]


class ModelRunner:
    """A model with its buffers. ``forward`` allocates nothing but the programs of row counts it has not seen.

    ``graphs``: rounds run as CUDA graphs where the device has them. Nothing here waits for the device. ``announce`` is
    told each batch, and whether it is prefill, before it runs: other ranks run it too.
    """

    def __init__(
        self,
        model: Decoder,
        attention: Attention,
        *,
        max_rows: int,
        max_logit_rows: int,
        max_sequences: int,
        max_blocks: int,
        device: ModelDevice = HOST,
        graphs: bool = True,
        announce: Announce | None = None,
        tap_layers: Sequence[int] = (),
    ) -> None:
        """Allocate for forwards of up to ``max_rows`` rows of ``max_sequences`` sequences of ``max_blocks`` blocks.

        Every forward leaves what comes out of the layers ``tap_layers`` in ``taps``.
        """
        self._announce = announce
        self.vocab_size = model.vocab_size
        self.max_rows = max_rows
        self.max_sequences = max_sequences
        self.max_logit_rows = max_logit_rows
        self.device = device
        self.attention = attention
        captures = graphs and device.device.type == "cuda" and attention.capturable
        self.graphs = ForwardGraphs(device.device) if captures else None
        self.taps = Taps.allocate(tap_layers, max_rows, model.hidden_size, device)
        self.last_batch: Sequence[SequenceRows] = ()  # whose rows the taps and the logits hold
        self.kernels = KernelCounters(model.projections)
        self._model = model
        self._staged = StagedInputs(max_rows, max_logit_rows, max_sequences, max_blocks, device.device)
        self._hidden = device.zeros(max_rows, model.hidden_size)
        self._head_hidden = device.zeros(max_logit_rows, model.hidden_size)
        self._head_normed = device.zeros(max_logit_rows, model.hidden_size)
        self._logits = device.zeros(max_logit_rows, model.vocab_size, dtype=torch.float32)
        self.last_logits = self._logits[:0]
        # The host's side as numpy arrays, and views that are made once: after a forward the caches are full of weights,
        # and each call of torch is slow.
        host = self._staged.host
        self._token_ids = host.token_ids.numpy()
        self._positions = host.positions.numpy()
        self._slots = host.slot_mapping.numpy()
        self._head_rows = host.head_rows.numpy()
        self._tables = host.block_table.numpy()
        self._seq_lens = host.seq_lens.numpy()
        self._query_start = host.query_start.numpy()
        self._initial_slots = host.initial_slots.numpy()
        self._state_slots = host.state_slots.numpy()
        self._body = lru_cache(_MAX_PROGRAMS)(self._bind_body)
        self._head = lru_cache(_MAX_PROGRAMS)(self._bind_head)
        self._greedy = lru_cache(_MAX_PROGRAMS)(self._bind_greedy)
        self._logit_views = lru_cache(_MAX_PROGRAMS)(self._view_logits)

    def forward(self, batch: Sequence[SequenceRows], *, prefill: bool = False) -> torch.Tensor:
        """Compute all rows; keys and values go to the reserved slots. ``prefill``: chunks of prompts, no round.

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
        if self._announce is not None:
            self._announce(batch, prefill)
        self.last_batch, self.last_logits = batch, self.logit_rows(0, wanted)
        self._staged.wait_until_writable()
        self._fill(batch)
        self._staged.upload_no_sync()
        self._run(_shape_of(batch, prefill), total, wanted)
        return self.last_logits

    def logit_rows(self, start: int, end: int) -> torch.Tensor:
        """The logit rows ``start`` to ``end``, a view that the next forward writes over."""
        return self._logit_views(start, end)

    def greedy(self, start: int, end: int) -> list[int]:
        """What `engine.sampling.sampler.greedy` finds in the logit rows ``start`` to ``end``."""
        return self._greedy(start, end)()

    def _run(self, shape: BatchShape, total: int, wanted: int) -> None:
        self.kernels.forward(total)
        prefill = shape.phase is Phase.PREFILL
        whole = partial(self._layers_and_head, total, wanted, prefill)
        table = self._staged.device.block_table
        if self.graphs is None or prefill:
            self.attention.begin(shape, table)
            whole()
            return
        key = (*shape.captured_by, wanted)
        replays = self.graphs.knows(key)
        self.attention.begin(shape, table, capturing=replays)
        if not replays:
            whole()
            self.graphs.note(key)
            return
        captured = self.graphs.run(key, whole)
        if not captured:  # a capture passes through the layers, and they count themselves
            self.attention.count_replay(self._model.attention_layers)

    def _layers_and_head(self, total: int, wanted: int, prefill: bool) -> None:
        self._body(total, prefill)()
        if wanted:
            self._head(total, wanted)()

    def _fill(self, batch: Sequence[SequenceRows]) -> None:
        end = picked = 0
        for index, rows in enumerate(batch):
            start, end = end, end + len(rows.token_ids)
            first = rows.reservation.start
            length = first + len(rows.token_ids)
            self._token_ids[start:end] = rows.token_ids
            self._positions[start:end] = range(first, length)
            self._slots[start:end] = rows.reservation.slot_mapping
            self._head_rows[picked : picked + rows.num_logits] = range(end - rows.num_logits, end)
            self._tables[index, : len(rows.block_table)] = rows.block_table
            self._seq_lens[index] = length
            self._query_start[index + 1] = end
            picked += rows.num_logits
            if rows.reservation.states is not None:
                self._initial_slots[index] = rows.reservation.states.read
                self._state_slots[start:end] = rows.reservation.states.write
        self._seq_lens[len(batch) :] = 0
        self._initial_slots[len(batch) :] = PADDED_SEQUENCE
        self._query_start[len(batch) + 1 :] = end

    def _bind_body(self, count: int, prefill: bool) -> Forward:
        inputs, taps = self._staged.device.first(count), self.taps.first(count)
        return self._model.bind_body(inputs, self._hidden[:count], prefill=prefill, taps=taps)

    def _bind_greedy(self, start: int, end: int) -> Callable[[], list[int]]:
        found = torch.empty(end - start, dtype=torch.int64, device=self._logits.device)
        search = bind_greedy(self._logits[start:end], out=found)
        token_ids = found.numpy() if self._logits.device.type == "cpu" else found

        def greedy() -> list[int]:
            search()
            return list(token_ids.tolist())

        return greedy

    def _view_logits(self, start: int, end: int) -> torch.Tensor:
        return self._logits[start:end]

    def _bind_head(self, total: int, wanted: int) -> Forward:
        if wanted == total:  # every row, in order: what comes out of the layers is read where it lies
            return self._model.bind_head(self._hidden[:total], self._head_normed[:wanted], self._logits[:wanted])
        rows, picked = self._staged.device.head_rows[:wanted], self._head_hidden[:wanted]
        head = self._model.bind_head(picked, self._head_normed[:wanted], self._logits[:wanted])

        def pick_and_run() -> None:
            torch.index_select(self._hidden[:total], 0, rows, out=picked)
            head()

        return pick_and_run


def _shape_of(batch: Sequence[SequenceRows], prefill: bool) -> BatchShape:
    query_lens = tuple(len(rows.token_ids) for rows in batch)
    lengths = tuple(rows.reservation.start + rows.reservation.count for rows in batch)
    one_row_each = max(query_lens) == 1
    phase = Phase.PREFILL if prefill else Phase.DECODE if one_row_each else Phase.VERIFY
    return BatchShape(phase, query_lens, lengths)
