"""Reporting: log probabilities of what was emitted, where a request asks for them."""

from __future__ import annotations

from engine.request import SamplingParams
from engine.result import TokenReport
from engine.sampling.processors import logprobs
from engine.steps.records import Committed, Verification


def reports_of(verification: Verification, committed: Committed, params: SamplingParams) -> tuple[TokenReport, ...]:
    """One report a committed token, of the row that it was drawn from as the head gave it; none where none is asked."""
    if verification.head_logits is None:
        return ()
    rows = zip(verification.head_logits, committed.token_ids, strict=False)
    return tuple(TokenReport(*logprobs(row, token_id, params.logprobs or 0)) for row, token_id in rows)
