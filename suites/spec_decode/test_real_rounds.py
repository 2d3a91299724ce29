"""Rounds of the trained pair, judged again in fp64 and in the dense form; every emitted count of 1 to K+1 comes up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.diagnostics.ledger import LedgerEntry, LedgerReport, VerifierLedger, independent, summarise
from engine.parallel.rank import current_rank
from engine.request import SamplingParams
from engine.run import Round
from engine.steps.records import LastToken
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.judging import Judge, watched
from suites.spec_decode.texts import COPIES, QUESTIONS, asked, drawn

pytestmark = pytest.mark.group("real rounds")

K = 7
ALL_COUNTS = set(range(1, K + 2))
LEAST_ROUNDS = 60

PROMPTS = [asked(message) for message in (*QUESTIONS, *COPIES)]


def assert_all_right(seen: Judge, record: Record, name: str) -> LedgerReport:
    report = seen.ledger.report()
    assert not seen.wrong, f"{len(seen.wrong)} of {seen.judged} rounds; {seen.wrong[0]}"
    assert report.dense_decisions == report.rounds == seen.judged, f"first: {report.first_disagreement}"
    assert report.required_candidate_misses == 0
    record.metric(f"{name}: rounds judged alike by the engine, the dense form and fp64", report.rounds, "round")
    record.metric(f"{name}: required candidates missed", 0, "token", better="lower")
    record.metric(f"{name}: decisions within the weights' band", seen.explained, "round", better="lower")
    for count, rounds in report.counts.items():
        record.metric(f"{name}: rounds that emitted {count}", rounds, "round")
    return report


ENGINES: dict[str, dict[str, Any]] = {
    "lookup": {"draft": "lookup"},
    "dflash2": {"draft": "dflash2"},
    "dflash2+lookup": {"draft": "dflash2+lookup", "fusion_weak": 2, "fusion_strong": 6, "fusion_agree": 1},
}


def settings_of(draft: str, quasar_draft: Path, **more: Any) -> dict[str, Any]:
    own = ENGINES[draft] if draft == "lookup" else {**ENGINES[draft], "draft_model": quasar_draft}
    return {**own, "draft_tokens": K, "max_model_len": 300, "max_sequences": len(PROMPTS), **more}


@pytest.mark.parametrize(
    ("draft", "rejection"),
    [("lookup", "sparse"), ("dflash2", "sparse"), ("dflash2+lookup", "dense")],
)
def test_every_round_is_decided_alike(
    draft: str, rejection: str, quasar: Path, quasar_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """Answers and copies of the trained pair under the published law, to their natural end or 64 tokens."""
    llm = engine_of(quasar, **settings_of(draft, quasar_draft, rejection=rejection))
    params = [drawn(64, seed) for seed in range(len(PROMPTS))]
    report = assert_all_right(watched(llm, PROMPTS, params), record, f"{draft}, {rejection}")
    assert report.rounds >= LEAST_ROUNDS
    if draft != "lookup":  # it proposes as many tokens as matched, so some lengths are rare: see the next case
        assert set(report.counts) == ALL_COUNTS, "not every emitted count was seen: the case has no power"
    assert (report.sparse_rows > 0) == (rejection == "sparse")


def test_every_count_of_a_lookup_is_decided_alike(
    quasar: Path, quasar_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """Seeds whose rounds have every length between them: most sets of eight lack four, five or seven tokens."""
    llm = engine_of(quasar, **settings_of("lookup", quasar_draft, rejection="sparse"))
    params = [drawn(64, first + index) for first in (40, 120) for index in range(len(PROMPTS))]
    report = assert_all_right(watched(llm, PROMPTS * 2, params), record, "lookup, every count")
    assert set(report.counts) == ALL_COUNTS, "not every emitted count was seen: the case has no power"


@pytest.mark.parametrize("temperature", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("draft", ENGINES)
def test_dense_and_sparse_emit_the_same_tokens(
    draft: str, temperature: float, quasar: Path, quasar_draft: Path, engine_of: EngineOf
) -> None:
    """Token for token over whole requests, with cutoffs that the sparse form takes and one that it refuses."""
    dense, sparse = (
        engine_of(quasar, **settings_of(draft, quasar_draft, rejection=form)) for form in ("dense", "sparse")
    )
    params = [
        SamplingParams(max_tokens=16, temperature=temperature, top_k=k, top_p=p, seed=seed)
        for seed, (k, p) in enumerate([(20, 0.95), (64, 1.0), (1, 1.0), (80, 0.5)])
    ]
    one, other = (llm.generate_batch(PROMPTS[2:6], params) for llm in (dense, sparse))
    assert [result.token_ids for result in one] == [result.token_ids for result in other]
    assert [result.emitted for result in one] == [result.emitted for result in other]


def entry(position: int, emitted: tuple[int, ...] = (5, 6), **change: Any) -> LedgerEntry:
    values = {"request_id": 3, "drafts": 1, "dense_emitted": emitted, "sparse_rows": 2, "missed_candidates": ()}
    return LedgerEntry(**{**values, "first_position": position, "emitted": emitted, **change})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_replicas_of_a_round_are_one_sample(ranks: int) -> None:
    """240 records of four ranks were 60 rounds: a rank that repeats what another one saw is no further evidence."""
    rounds = [entry(position) for position in range(60)]
    report = summarise(independent(rounds * ranks))
    assert (report.rounds, report.dense_decisions, report.sparse_rows) == (60, 60, 120)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_is_named_by_its_group_not_by_a_stale_environment(rank: int) -> None:
    """Four workers that all believed to be rank 0 once wrote 240 files of 60 rounds."""
    assert current_rank(rank, {"RANK": "0", "LOCAL_RANK": "0"}) == rank


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"LOCAL_RANK": "2"}, 2), ({"RANK": "3", "LOCAL_RANK": "1"}, 3)],
    ids=["nothing-set", "local-rank", "rank-wins"],
)
def test_the_environment_counts_where_there_is_no_group(environment: dict[str, str], rank: int) -> None:
    assert current_rank(None, environment) == rank


def test_ranks_that_decided_differently_are_an_error() -> None:
    with pytest.raises(ValueError, match="two records of request 3, position 7 differ"):
        independent([entry(7), entry(8), entry(7, (5, 9))])


def test_the_same_position_of_another_request_is_another_sample() -> None:
    assert len(independent([entry(7), entry(7, request_id=4)])) == 2


def test_the_ledger_counts_what_disagrees_and_what_is_missed() -> None:
    wrong = entry(9, (5,), dense_emitted=(6,))
    report = summarise([entry(7), entry(8, missed_candidates=(44, 45)), wrong])
    assert (report.rounds, report.dense_decisions, report.required_candidate_misses) == (3, 2, 2)
    assert report.first_disagreement == wrong
    assert report.counts == {1: 1, 2: 2}


def test_one_engine_has_one_observer(quasar: Path, quasar_draft: Path, engine_of: EngineOf) -> None:
    llm = engine_of(quasar, **settings_of("lookup", quasar_draft))
    VerifierLedger(llm)
    try:
        with pytest.raises(RuntimeError, match=r"is observed by .* already; set its observer to None first"):
            VerifierLedger(llm)
    finally:
        llm.observer = None


def test_the_histogram_of_a_result_is_that_of_its_rounds(quasar: Path, quasar_draft: Path, engine_of: EngineOf) -> None:
    """Accepted drafts per round, from the observer and from the result; a bonus token only after a full block."""
    llm = engine_of(quasar, **settings_of("dflash2", quasar_draft))
    seen: list[Round] = []

    class Watch:
        def round(self, seen_round: Round) -> None:
            seen.append(seen_round)

    llm.observer = Watch()
    try:
        result = llm.generate(PROMPTS[4], drawn(60, 4))
    finally:
        llm.observer = None
    rounds = seen[1:]
    counted = [0] * (K + 1)
    for one in rounds:
        counted[min(len(one.acceptance.accepted), len(one.committed.token_ids))] += 1
    assert tuple(counted) == result.acceptance_histogram
    assert result.emitted == tuple(len(one.committed.token_ids) for one in rounds)
    for one in rounds:
        full = len(one.acceptance.accepted) == len(one.proposal.token_ids)
        assert (one.acceptance.source is LastToken.BONUS) == full
