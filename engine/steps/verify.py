"""Verify: the target's law at every drafted position of every sequence, from one forward of K+1 rows each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engine.config import LawForm
from engine.model.runner import ModelRunner, SequenceRows
from engine.request import SamplingParams
from engine.state.sequence import Reservation, SequenceState
from engine.steps.laws import history_of, verification_of
from engine.steps.read_ahead import Asked, ask_ahead
from engine.steps.records import Fault, Noise, Proposal, Verification


@dataclass(frozen=True, slots=True, eq=False)
class VerifyItem:
    """One sequence with what was drafted for it; K may differ from its neighbours', 0 is plain decode.

    ``reservation`` is what the drafter opened, K+1 rows at least; without it the rows are reserved here. ``noise`` is
    what reject will use: with it, a device answers ahead (see `engine.steps.read_ahead`).
    """

    sequence: SequenceState
    params: SamplingParams
    proposal: Proposal
    noise: Noise | None = None
    reservation: Reservation | None = None

    @property
    def num_rows(self) -> int:
        """K+1: the anchor and the drafts."""
        return len(self.proposal.token_ids) + 1


def verify(runner: ModelRunner, items: Sequence[VerifyItem], form: LawForm = "dense") -> list[Verification | Fault]:
    """Run the anchor and the drafts of every sequence in one forward; reserves K+1 rows each, commits nothing.

    ``form`` is that of the laws, see `engine.steps.laws`.
    """
    batch = [_rows(item) for item in items]
    ahead = ask_ahead(runner.device, [_asked(item) for item in items]) if form == "dense" else None
    logits = runner.forward(batch)
    if ahead is not None:
        return ahead.read(logits)
    verifications: list[Verification | Fault] = []
    end = 0
    for item, rows in zip(items, batch, strict=True):
        start, end = end, end + rows.num_logits
        history, drafts = history_of(item.sequence, item.params), item.proposal.token_ids
        position = len(item.sequence.token_ids)
        bound = partial(runner.greedy, start, end)
        view = runner.logit_rows(start, end)
        laws = verification_of(position, view, item.params, history, drafts, form, bound_greedy=bound)
        verifications.append(laws)
    return verifications


def _asked(item: VerifyItem) -> Asked | None:
    if item.noise is None:
        return None
    return Asked(len(item.sequence.token_ids), item.params, item.proposal.token_ids, item.noise)


def _rows(item: VerifyItem) -> SequenceRows:
    tokens = (item.sequence.token_ids[-1], *item.proposal.token_ids)
    opened = item.reservation
    reservation = item.sequence.reserve(len(tokens)) if opened is None else opened.first(len(tokens))
    return SequenceRows(tokens, reservation, item.sequence.block_table, num_logits=len(tokens))
