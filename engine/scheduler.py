"""Who runs in the next step: integers and queues, no tensors.

First come, first served. A step prefills one chunk's worth of those who need it, then gives every sequence that decodes
one round. When blocks run out, the sequence that came last starts again later; nothing it emitted is lost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.state.blocks import BlockPool
from engine.state.sequence import SequenceState


class Schedulable(Protocol):
    """What the scheduler needs to know of a request that runs."""

    @property
    def sequence(self) -> SequenceState:
        """Its history and blocks."""


RunT = TypeVar("RunT", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[RunT]):
    """One step: chunks to prefill (who, how many tokens), then the sequences that get a round."""

    prefill: tuple[tuple[RunT, int], ...]
    decode: tuple[RunT, ...]

    @property
    def everyone(self) -> tuple[RunT, ...]:
        """All that the step moves."""
        return (*(run for run, _ in self.prefill), *self.decode)


class Scheduler(Generic[RunT]):
    """Queues of requests. ``verify_width`` rows (K+1) are kept free for every sequence that decodes.

    ``prefill_multiple`` is where chunks of a prompt end if they can.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_sequences: int,
        max_prefill_rows: int,
        verify_width: int,
        prefill_multiple: int = 1,
    ) -> None:
        self._pool = pool
        self._max_sequences = max_sequences
        self._max_prefill_rows = max_prefill_rows
        self._verify_width = verify_width
        self._prefill_multiple = prefill_multiple
        self._waiting: deque[RunT] = deque()
        self._running: list[RunT] = []

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._waiting or self._running)

    def add(self, run: RunT) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(run)

    def remove(self, run: RunT) -> None:
        """Remove a request, waiting or running, and free its blocks; removing it twice does no harm."""
        if run in self._running:
            self._running.remove(run)
        elif run in self._waiting:
            self._waiting.remove(run)
        run.sequence.release()

    def plan(self) -> StepPlan[RunT]:
        """Make room for a round of every running sequence, admit who fits beside them, share out the prefill rows."""
        self._make_room_for_rounds()
        self._admit()
        decode = tuple(run for run in self._running if not run.sequence.num_to_prefill)
        return StepPlan(self._share_prefill_rows(), decode)

    def _make_room_for_rounds(self) -> None:
        while self._promised_blocks() > self._pool.num_free and len(self._running) > 1:
            last = self._running.pop()
            last.sequence.release()
            self._waiting.appendleft(last)

    def _admit(self) -> None:
        """The first in the queue comes in when its whole history and a round fit beside everybody's next round."""
        while self._waiting and len(self._running) < self._max_sequences:
            sequence = self._waiting[0].sequence
            sequence.adopt_prefix()
            wanted = sequence.blocks_missing(sequence.num_to_prefill + self._verify_width)
            if wanted + self._promised_blocks() > self._pool.num_free:
                sequence.release()
                return
            self._running.append(self._waiting.popleft())

    def _share_prefill_rows(self) -> tuple[tuple[RunT, int], ...]:
        left, chunks = self._max_prefill_rows, []
        for run in self._running:
            count = self._chunk(run.sequence, left)
            if count:
                chunks.append((run, count))
                left -= count
        return tuple(chunks)

    def _chunk(self, sequence: SequenceState, rows: int) -> int:
        """Up to ``rows`` tokens; a chunk that can end at a multiple of ``prefill_multiple`` does."""
        count = min(sequence.num_to_prefill, rows)
        end = sequence.num_computed + count
        even_end = end - end % self._prefill_multiple
        return even_end - sequence.num_computed if even_end > sequence.num_computed else count

    def _promised_blocks(self) -> int:
        """Blocks that the running sequences will take for their prefill and one round."""
        return sum(
            run.sequence.blocks_missing(run.sequence.num_to_prefill + self._verify_width) for run in self._running
        )
