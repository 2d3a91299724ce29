from __future__ import annotations

import pytest

from engine.request import Request, SamplingParams
from engine.state.blocks import BlockPool
from engine.state.sequence import SequenceState
from engine.steps.commit import commit
from engine.steps.records import Acceptance, Committed, FinishReason, LastToken

STOP = 2


def decoding(prompt: int, rows: int) -> SequenceState:
    """A sequence after its first token, 50, with a round of ``rows`` open."""
    sequence = SequenceState([9] * prompt, BlockPool(8, 4))
    sequence.reserve(prompt)
    sequence.commit(prompt, [50])
    sequence.reserve(rows)
    return sequence


def request(max_tokens: int) -> Request:
    return Request(0, (9, 9, 9), SamplingParams(), seed=0, max_tokens=max_tokens, stop_token_ids=frozenset({STOP}))


@pytest.mark.parametrize(
    ("accepted", "max_tokens", "kept", "reason"),
    [
        ((11, 12, 13), 10, (11, 12, 13, 14), None),
        ((), 10, (14,), None),
        ((11, STOP, 13), 10, (11, STOP), FinishReason.STOP),
        ((11, 12, 13), 5, (11, 12, 13, 14), FinishReason.LENGTH),
        ((11, 12, 13), 6, (11, 12, 13, 14), None),
        ((11, 12, 13), 3, (11, 12), FinishReason.LENGTH),
        # The stop token is also the last one allowed: the reply ended by itself.
        ((11, STOP), 3, (11, STOP), FinishReason.STOP),
    ],
)
def test_keeps_up_to_a_stop_token_or_the_limit(
    accepted: tuple[int, ...], max_tokens: int, kept: tuple[int, ...], reason: FinishReason | None
) -> None:
    sequence = decoding(3, 4)
    committed = commit(sequence, request(max_tokens), Acceptance(accepted, 14, LastToken.BONUS))
    assert committed == Committed(kept, reason)
    assert list(sequence.emitted) == [50, *kept]
    # The anchor's row and those of the kept drafts; the last token kept is the next anchor.
    assert sequence.num_computed == 3 + len(kept)


def test_the_first_token_commits_the_chunk_that_ends_the_prompt() -> None:
    sequence = SequenceState([9, 9, 9], BlockPool(8, 4))
    sequence.reserve(3)
    committed = commit(sequence, request(10), Acceptance((), 50, LastToken.BONUS), first_rows=3)
    assert committed == Committed((50,), None)
    assert (sequence.num_computed, sequence.num_to_prefill) == (3, 0)
