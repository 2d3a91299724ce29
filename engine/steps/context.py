"""The draft model's context: what the target's layers said of the accepted tokens, as keys and values of the draft.

Which tokens are accepted decides what is *stored*, never what is computed. So the computation may run ahead, right
after the target's forward and before its rows are judged; after the commit the accepted rows are stored, the rejected
ones are PAD. In order or ahead, every bit that can be observed is the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.model.draft_runner import DraftRunner
from engine.model.runner import ModelRunner, SequenceRows
from engine.state.sequence import SequenceState

ADMITTED = "ahead"


@dataclass(frozen=True, slots=True)
class RoundShape:
    """What admission looks at: rows of each sequence in the round, and how many sequences prefill in the same step."""

    rows: tuple[int, ...]
    prefilling: int


def pipeline_refusal(shape: RoundShape, full_rows: int) -> str | None:
    """Why a round's context is computed in order, or None where it may run ahead.

    Only uniform rounds are admitted: nobody prefills, and every sequence verifies ``full_rows`` = K+1 rows. Those are
    the shapes that a captured graph would replay.
    """
    if shape.prefilling:
        return "a sequence prefills"
    if any(rows != full_rows for rows in shape.rows):
        return "rows of the sequences differ from K+1"
    return None


class Context(Protocol):
    """Follows every forward of the target. ``rounds`` counts what became of the rounds: ahead, or why not."""

    rounds: Counter[str]

    def verified(self, shape: RoundShape) -> None:
        """Called after a verification, before its rows are judged."""

    def committed(self, sequences: Sequence[SequenceState]) -> None:
        """Called after the commits of the last forward's batch; ``sequences`` are in its order."""

    def take_seconds(self) -> float:
        """Host seconds spent since the last call: what the drafts of the round to come have cost already."""


class NoContext:
    """Without a draft model there is nothing to follow."""

    def __init__(self) -> None:
        self.rounds: Counter[str] = Counter()

    def verified(self, shape: RoundShape) -> None:
        """See `Context`."""

    def committed(self, sequences: Sequence[SequenceState]) -> None:
        """See `Context`."""

    def take_seconds(self) -> float:
        """See `Context`."""
        return 0.0


class DraftContext:
    """The `Context` of a draft model."""

    def __init__(self, runner: ModelRunner, draft: DraftRunner, *, pipeline: bool, full_rows: int) -> None:
        self.rounds: Counter[str] = Counter()
        self._runner = runner
        self._draft = draft
        self._pipeline = pipeline
        self._full_rows = full_rows
        self._seconds = 0.0

    def verified(self, shape: RoundShape) -> None:
        """See `Context`: compute ahead where that is asked for and admitted. A round of no rows had no forward."""
        if not shape.rows:
            return
        refusal = pipeline_refusal(shape, self._full_rows) if self._pipeline else "the pipeline is off"
        self.rounds[refusal or ADMITTED] += 1
        if refusal is None:
            self._compute(self._runner.last_batch)

    def committed(self, sequences: Sequence[SequenceState]) -> None:
        """See `Context`: store the rows that stayed of each sequence; of no sequences there was no forward.

        What was computed ahead counts only for this very batch; what an interrupted round left is computed again.
        """
        if not sequences:
            return
        batch = self._runner.last_batch
        if not self._draft.holds(batch):
            self._compute(batch)
        start = time.perf_counter()
        kept = [one.num_computed - rows.reservation.start for one, rows in zip(sequences, batch, strict=True)]
        self._draft.store_context(batch, kept)
        self._seconds += time.perf_counter() - start

    def take_seconds(self) -> float:
        """See `Context`."""
        taken, self._seconds = self._seconds, 0.0
        return taken

    def _compute(self, batch: Sequence[SequenceRows]) -> None:
        start = time.perf_counter()
        self._draft.compute_context(batch)
        self._seconds += time.perf_counter() - start
