"""Commit: the accepted tokens become history, their rows stay in the cache, the rest of the reservation goes back."""

from __future__ import annotations

from engine.request import Request
from engine.state.sequence import SequenceState
from engine.steps.records import Acceptance, Committed, FinishReason


def commit(sequence: SequenceState, request: Request, acceptance: Acceptance, first_rows: int = 1) -> Committed:
    """Close the sequence's transaction with what was accepted, up to a stop token or the last token allowed.

    ``first_rows`` are the reserved rows before the drafts: the anchor, or the chunk that ended the prompt.
    """
    left = request.max_tokens - sequence.num_emitted
    kept = _until_stop(acceptance.emitted[:left], request.stop_token_ids)
    # The last token is the next anchor: its row is the first of the next round.
    sequence.commit(first_rows + len(kept) - 1, kept)
    if kept[-1] in request.stop_token_ids:
        return Committed(kept, FinishReason.STOP)
    return Committed(kept, FinishReason.LENGTH if len(kept) == left else None)


def _until_stop(token_ids: tuple[int, ...], stop_token_ids: frozenset[int]) -> tuple[int, ...]:
    for index, token_id in enumerate(token_ids):
        if token_id in stop_token_ids:
            return token_ids[: index + 1]
    return token_ids
