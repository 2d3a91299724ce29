"""Rounds of whole engines: judged again in fp64 and in the dense form, every emitted count from 1 to K+1 among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.diagnostics.ledger import LedgerEntry, LedgerReport, VerifierLedger, independent, summarise
from engine.llm import LLM
from engine.parallel.rank import current_rank
from engine.request import SamplingParams
from engine.run import Round
from engine.sampling.random import Purpose
from engine.steps.records import LastToken
from suites.oracles import sampling as oracle
from suites.oracles.arrays import F64
from suites.oracles.spec_rejection import judge
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf

pytestmark = pytest.mark.group("real rounds")

K = 7
ALL_COUNTS = set(range(1, K + 2))
LEAST_ROUNDS = 60

TEXTS = [
    "The quick brown fox jumps over the lazy dog while the old grey wolf sleeps under the tree.",
    "A journey of a thousand miles begins with a single step, and a single step begins with a thought.",
    "All that glitters is not gold, often have you heard that told, many a man his life has sold.",
    "Apples, pears, plums, apples, cherries, pears, lemons, apples, plums, grapes, pears, cherries.",
    "def add(a, b): return a + b; def sub(a, b): return a - b; def mul(a, b): return a * b",
    "One two three four five six seven eight nine ten one two three four five six seven eight.",
    "She sells sea shells by the sea shore, the shells she sells are surely sea shells.",
    "Monday we walk, Tuesday we swim, Wednesday we walk, Thursday we swim, Friday we rest.",
]
PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]


@dataclass
class Judge:
    """Decides each round a third time, in fp64 from the logits; then hands it on to the ledger."""

    llm: LLM
    ledger: VerifierLedger
    judged: int = 0
    explained: int = 0  # rounds in which a decision is nearer than the integer weights' band
    wrong: list[str] = field(default_factory=list)

    def round(self, seen: Round) -> None:
        before = len(self.ledger.entries)
        self.ledger.round(seen)
        if len(self.ledger.entries) == before:
            return
        self.judged += 1
        params, drafts = seen.run.request.params, len(seen.proposal.token_ids)
        logits = self.ledger.logits_of(seen).numpy()
        vocab = logits.shape[1]
        targets = [_cut(row, params) for row in logits]
        laws = [_written(law.token_ids, law.probs, vocab) for law in seen.proposal.draft_laws]
        noise, first = seen.run.noise, seen.verification.first_position
        steps = range(first, first + drafts)
        expected = judge(
            targets,
            seen.proposal.token_ids,
            laws,
            [noise.uniform(position, Purpose.ACCEPT) for position in steps],
            [noise.uniform(position, Purpose.RECOVER) for position in steps],
            noise.uniform(first + drafts, Purpose.TARGET),
        )
        if expected.emitted != seen.acceptance.emitted:
            if expected.margin <= float(oracle.fixed_point_band(vocab)):
                self.explained += 1
            else:
                self.wrong.append(f"position {first}: {seen.acceptance.emitted}, fp64 says {expected}")


def _cut(row: np.ndarray, params: SamplingParams) -> F64:
    ranking = oracle.rank(oracle.after_temperature(row, params.temperature), params.top_k)
    return ranking.probabilities(float(np.float32(params.top_p)), len(row))


def _written(token_ids: Any, probs: Any, vocab: int) -> F64:
    out = np.zeros(vocab)
    out[token_ids] = probs
    return out


def watched(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Judge:
    """Run the requests together with every round judged."""
    judge_of_all = Judge(llm, VerifierLedger(llm))
    llm.observer = judge_of_all
    try:
        llm.generate_batch(prompts, params)
    finally:
        llm.observer = None
    return judge_of_all


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


def test_the_real_model_with_lookup(smollm2: Path, engine_of: EngineOf, record: Record) -> None:
    llm = engine_of(smollm2, draft="lookup", draft_tokens=K, rejection="sparse", max_model_len=300)
    prompts = [llm.chat_prompt(f"Repeat this text word by word: {text}") for text in TEXTS]
    params = [
        SamplingParams(max_tokens=44, temperature=0.6, top_k=20, top_p=0.95, seed=seed) for seed in range(len(TEXTS))
    ]
    report = assert_all_right(watched(llm, prompts, params), record, "lookup")
    assert report.rounds >= LEAST_ROUNDS
    assert set(report.counts) == ALL_COUNTS, "not every emitted count was seen: the case has no power"
    assert report.sparse_rows > 0


HOT = [SamplingParams(max_tokens=70, temperature=100.0, top_k=64, seed=seed, stop_token_ids=()) for seed in (1, 2, 3)]


@pytest.mark.parametrize("rejection", ["sparse", "dense"])
@pytest.mark.parametrize("draft", ["dflash2", "dflash2+lookup"])
def test_the_hybrid_model_with_a_draft_model(
    draft: str, rejection: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """Random weights agree by chance alone, so laws are flat here: 64 candidates of 99 tokens at temperature 100."""
    llm = engine_of(
        hybrid,
        draft=draft,
        draft_model=wide_draft,
        draft_tokens=K,
        rejection=rejection,
        fusion_weak=1,
        fusion_strong=3,
        fusion_agree=1,
        fusion_tail=2,
    )
    report = assert_all_right(watched(llm, [PROMPT] * len(HOT), HOT), record, f"{draft}, {rejection}")
    assert report.rounds >= LEAST_ROUNDS
    assert set(report.counts) == ALL_COUNTS, "not every emitted count was seen: the case has no power"


@pytest.mark.parametrize("temperature", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("draft", ["lookup", "dflash2", "dflash2+lookup"])
def test_dense_and_sparse_emit_the_same_tokens(
    draft: str, temperature: float, hybrid: Path, draft_model: Path, engine_of: EngineOf
) -> None:
    """Token for token over whole requests, with cutoffs that the sparse form takes and one that it refuses."""
    settings = {"draft": draft, "draft_tokens": K, "lookup_min": 1}
    if draft != "lookup":
        settings |= {"draft_model": draft_model, "fusion_weak": 2, "fusion_strong": 4, "fusion_agree": 1}
    dense, sparse = (engine_of(hybrid, rejection=form, **settings) for form in ("dense", "sparse"))
    params = [
        SamplingParams(max_tokens=16, temperature=temperature, top_k=k, top_p=p, seed=seed, stop_token_ids=())
        for seed, (k, p) in enumerate([(20, 0.95), (64, 1.0), (1, 1.0), (80, 0.5)])
    ]
    one, other = (llm.generate_batch([PROMPT] * len(params), params) for llm in (dense, sparse))
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


def test_one_engine_has_one_observer(hybrid: Path, engine_of: EngineOf) -> None:
    llm = engine_of(hybrid, draft="lookup")
    VerifierLedger(llm)
    try:
        with pytest.raises(RuntimeError, match=r"is observed by .* already; set its observer to None first"):
            VerifierLedger(llm)
    finally:
        llm.observer = None


def test_the_histogram_of_a_result_is_that_of_its_rounds(hybrid: Path, wide_draft: Path, engine_of: EngineOf) -> None:
    """Accepted drafts a round, from the observer and from the result; a bonus token only behind a full block."""
    llm = engine_of(hybrid, draft="dflash2", draft_model=wide_draft, draft_tokens=K)
    seen: list[Round] = []

    class Watch:
        def round(self, seen_round: Round) -> None:
            seen.append(seen_round)

    llm.observer = Watch()
    try:
        result = llm.generate(PROMPT, SamplingParams(max_tokens=60, temperature=40.0, seed=4, stop_token_ids=()))
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
