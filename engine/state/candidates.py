"""The candidate cache: what was drafted in the running round and with which probabilities, in fixed buffers.

Its rows are the laws that a proposal carries: a row holds the few tokens that its draft had any chance to be, the
others have none. A row is narrower when its token was looked up (one token, probability 1) than when it was drawn (the
candidates), so a slot is erased before it is written: what a wider row left behind would count as its candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NO_CANDIDATE = -1

Row = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class CandidateCache:
    """Rows by (slot, step): ``token_ids`` int64, ``probs`` fp64, both [slots, steps, width]; empty places are -1, 0."""

    def __init__(self, slots: int, steps: int, width: int) -> None:
        self.token_ids = np.full((slots, steps, width), NO_CANDIDATE, np.int64)
        self.probs = np.zeros((slots, steps, width))

    def write(self, slot: int, rows: Sequence[Row]) -> None:
        """One row a draft: ids [n], ascending, and their probabilities [n], n from 1 to the width."""
        self._erase(slot)
        for step, (token_ids, probs) in enumerate(rows):
            self.token_ids[slot, step, : len(token_ids)] = token_ids
            self.probs[slot, step, : len(token_ids)] = probs

    def read(self, slot: int) -> list[Row]:
        """The rows that are written in ``slot``, copies."""
        written = self.token_ids[slot] != NO_CANDIDATE
        depth = int(written[:, 0].sum())
        rows = zip(self.token_ids[slot, :depth], self.probs[slot, :depth], written[:depth], strict=True)
        return [(token_ids[there], probs[there]) for token_ids, probs, there in rows]

    def _erase(self, slot: int) -> None:
        self.token_ids[slot] = NO_CANDIDATE
        self.probs[slot] = 0.0
