from __future__ import annotations

import dataclasses

import pytest

from engine.request import Request, SamplingParams
from engine.result import Recorder, StepTimes
from engine.steps.records import Acceptance, Committed, Fault, FinishReason, LastToken

REQUEST = Request(0, (1, 2), SamplingParams(), seed=5, max_tokens=9, stop_token_ids=frozenset())
TIMES = StepTimes(draft_s=0.03, verify_s=0.2, reject_s=0.01, commit_s=0.01)


def recorder() -> Recorder:
    return Recorder(REQUEST, arrival_ts=10.0, max_drafts=3)


def test_a_round_excludes_prefill_and_the_first_token() -> None:
    record = recorder()
    record.first_token(Committed((7,), None), 11.0)
    record.round(Acceptance((8, 9), 10, LastToken.BONUS), Committed((8, 9, 10), None), 11.25, TIMES)
    record.round(Acceptance((), 11, LastToken.RECOVERED), Committed((11,), FinishReason.LENGTH), 11.5, TIMES)
    result = record.result("text")
    assert result.ttft_s == 1.0
    assert result.rounds == 2
    assert result.round_ms == 250.0
    assert result.round_times_ms == (250.0, 250.0)
    assert result.emitted_per_round == 2.0
    assert result.acceptance_histogram == (1, 0, 1, 0)
    # The definition's identity: round_ms = (tokens - 1) / tokens a second / rounds.
    assert result.decode_tokens_per_second == pytest.approx(4 / 0.5)
    assert result.finish_reason is FinishReason.LENGTH
    assert (result.token_ids, result.seed, result.text) == ((7, 8, 9, 10, 11), 5, "text")


def test_only_drafts_that_became_text_count_as_accepted() -> None:
    record = recorder()
    record.first_token(Committed((7,), None), 11.0)
    record.round(Acceptance((8, 9, 10), 11, LastToken.BONUS), Committed((8,), FinishReason.STOP), 12.0, TIMES)
    assert record.result("").acceptance_histogram == (0, 1, 0, 0)


def test_a_reply_of_one_token_has_no_round() -> None:
    record = recorder()
    record.first_token(Committed((7,), FinishReason.STOP), 11.0)
    result = record.result("")
    assert (result.rounds, result.round_ms, result.emitted_per_round) == (0, None, None)
    assert result.decode_tokens_per_second is None


def test_what_did_not_end_was_aborted() -> None:
    result = recorder().result("")
    assert result.finish_reason is FinishReason.ABORTED
    assert result.ttft_s is None


def test_a_request_that_failed_says_why() -> None:
    record = recorder()
    record.first_token(Committed((7,), None), 11.0)
    record.fail(Fault("position 3: the logits contain NaN"))
    result = record.result("x")
    assert (result.finish_reason, result.error) == ("error", "position 3: the logits contain NaN")
    assert result.token_ids == (7,)
    with pytest.raises(ValueError, match="finish reason error with error None; allowed: both or neither"):
        dataclasses.replace(result, error=None)
    with pytest.raises(ValueError, match="1 times for 2 rounds; allowed: one more"):
        dataclasses.replace(result, emitted=(1, 1))
