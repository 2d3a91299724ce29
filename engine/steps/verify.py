"""Verify: the target's law at every drafted position of every sequence, from one forward of K+1 rows each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.runner import ModelRunner, SequenceRows
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from engine.steps.laws import verification_of
from engine.steps.records import Fault, Proposal, Verification


@dataclass(frozen=True, slots=True, eq=False)
class VerifyItem:
    """One sequence with what was drafted for it; K may differ from its neighbours', 0 is plain decode."""

    sequence: SequenceState
    params: SamplingParams
    proposal: Proposal


def verify(runner: ModelRunner, items: Sequence[VerifyItem]) -> list[Verification | Fault]:
    """Run the anchor and the drafts of every sequence in one forward; reserves K+1 rows each, commits nothing."""
    batch = [_rows(item) for item in items]
    logits = runner.forward(batch)
    verifications: list[Verification | Fault] = []
    end = 0
    for item, rows in zip(items, batch, strict=True):
        start, end = end, end + rows.num_logits
        verifications.append(verification_of(len(item.sequence.token_ids), logits[start:end], item.params))
    return verifications


def _rows(item: VerifyItem) -> SequenceRows:
    tokens = (item.sequence.token_ids[-1], *item.proposal.token_ids)
    reservation = item.sequence.reserve(len(tokens))
    return SequenceRows(tokens, reservation, item.sequence.block_table, num_logits=len(tokens))
