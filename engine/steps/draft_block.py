"""Drafting with a draft model: a block for each sequence that wants drafts, joined with lookup where that is asked for.

The choice of a lookup may depend on the drafted tokens; `engine.steps.fusion` says which laws it then records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.model.draft_runner import DraftBlock, DraftRunner
from engine.model.selector import Lattice
from engine.state.candidates import CandidateCache, Row
from engine.steps.draft import Drafted, DraftItem, LookupSettings, find_match
from engine.steps.fusion import FusionSettings, fuse
from engine.steps.lattice import lattice_masses, walk
from engine.steps.records import DraftLaw, Fault, PointLaw, Proposal, TokenLaw


@dataclass(frozen=True, slots=True)
class LookupFusion:
    """How matches are found and when they are taken."""

    lookup: LookupSettings
    fusion: FusionSettings


class BlockDrafter:
    """See `engine.steps.draft.Drafter`. The laws that it proposes are the rows of its candidate cache."""

    def __init__(self, runner: DraftRunner, cache: CandidateCache, fusion: LookupFusion | None) -> None:
        self.runner = runner
        self.cache = cache
        self._fusion = fusion

    def draft(self, items: Sequence[DraftItem]) -> list[Drafted | Fault]:
        """Reserves room for a whole block (and for the widest verification) for each item that wants drafts."""
        drafting = [item for item in items if item.width > 0]
        if not drafting:
            return [Drafted(Proposal()) for _ in items]
        rows = [max(self.runner.block_size, item.width + 1) for item in drafting]
        reservations = [item.sequence.reserve(count) for item, count in zip(drafting, rows, strict=True)]
        blocks = [
            DraftBlock(item.sequence.token_ids[-1], reservation, item.sequence.block_table)
            for item, reservation in zip(drafting, reservations, strict=True)
        ]
        lattice = self.runner.draft(blocks)
        masses = lattice_masses(lattice.scores, [item.temperature for item in drafting])
        drafted: dict[DraftItem, Drafted | Fault] = {}
        for index, (item, reservation) in enumerate(zip(drafting, reservations, strict=True)):
            walked = self._walk(lattice, masses, index, item)
            if isinstance(walked, Fault):
                drafted[item] = walked
            else:
                drafted[item] = Drafted(self._kept(index, self._joined(walked, item)), reservation)
        return [drafted.get(item, Drafted(Proposal())) for item in items]

    def _walk(self, lattice: Lattice, masses: npt.NDArray[np.int64], index: int, item: DraftItem) -> Proposal | Fault:
        fault = lattice.faults[index]
        if fault is not None:
            return Fault(fault)
        position, width = len(item.sequence.token_ids), min(item.width, self.runner.max_drafts)
        return walk(lattice.candidate_ids[index], masses[index], position, width, item.noise)

    def _joined(self, walked: Proposal, item: DraftItem) -> Proposal:
        if self._fusion is None:
            return walked
        match = find_match(item.sequence.token_ids, item.width, self._fusion.lookup)
        return fuse(walked, match, self._fusion.fusion)

    def _kept(self, slot: int, proposal: Proposal) -> Proposal:
        """The proposal with the laws that the cache holds."""
        self.cache.write(slot, [(law.token_ids, law.probs) for law in proposal.draft_laws])
        return Proposal(proposal.token_ids, tuple(map(_law, self.cache.read(slot))))


def _law(row: Row) -> DraftLaw:
    token_ids, probs = row
    return PointLaw(int(token_ids[0])) if len(token_ids) == 1 else TokenLaw(token_ids, probs)
