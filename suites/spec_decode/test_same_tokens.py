"""Speculation changes how many tokens a round emits, never which: greedy token for token, sampled in law."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.runner import SequenceRows
from engine.request import SamplingParams
from engine.result import GenerationResult
from engine.steps.laws import LogitsLaw, verification_of
from engine.steps.records import Verification
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.texts import COPIES, QUESTIONS, asked, drawn, plain

pytestmark = pytest.mark.group("same tokens")

K = 7
PROMPTS = [asked(COPIES[1]), asked(QUESTIONS[1]), asked(COPIES[2])]
CYCLE = plain(" one two three" * 6)
FUSION = {"fusion_weak": 2, "fusion_strong": 4, "fusion_agree": 1, "fusion_tail": 2}
DRAFTS = ("lookup", "dflash2", "dflash2+lookup")
# Rounds that must accept something, or the sampled law is shown of rejection alone.
LEAST_ACCEPTING = 60
ALPHA = 1e-6  # false-alarm rate of a statistical case over the choice of its seeds
SEEDS = 400
# What the sampled law must not miss: a total variation of this much, in whatever direction, is found 95 times of 100.
MISSED, LEAST_ERROR = 0.05, 0.21


def settings_of(draft: str, quasar_draft: Path, **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"lookup_min": 1} if draft == "lookup" else {"draft_model": quasar_draft, **FUSION}
    return {"draft": draft, "max_model_len": 256, "max_sequences": 4, **own, **more}


@pytest.fixture(scope="module")
def replies(quasar: Path) -> list[GenerationResult]:
    """What plain decode says to each prompt, one by one, to its natural end."""
    llm = LLM(EngineConfig(model=quasar, threads=2, max_model_len=256))
    return [llm.generate(prompt, SamplingParams(max_tokens=60)) for prompt in PROMPTS]


def test_plain_replies_end_by_themselves(replies: list[GenerationResult], record: Record) -> None:
    """Without that, no case here would see a stop inside a block."""
    record.tokens(
        "plain",
        [reply.token_ids for reply in replies],
        [str(reply.finish_reason) for reply in replies],
        rounds=sum(reply.rounds for reply in replies),
    )
    assert sum(reply.finish_reason == "stop" for reply in replies) >= 2
    assert all(set(reply.emitted) == {1} for reply in replies)


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy(
    draft: str,
    drafts: int,
    quasar: Path,
    quasar_draft: Path,
    engine_of: EngineOf,
    replies: list[GenerationResult],
    record: Record,
) -> None:
    """All prompts together, to the end: the tokens of each alone without drafts, and rounds of both kinds."""
    llm = engine_of(quasar, draft_tokens=drafts, **settings_of(draft, quasar_draft))
    results = llm.generate_batch(PROMPTS, SamplingParams(max_tokens=60))
    assert [result.token_ids for result in results] == [reply.token_ids for reply in replies]
    assert [result.finish_reason for result in results] == [reply.finish_reason for reply in replies]
    emitted = [count for result in results for count in result.emitted]
    assert max(emitted) <= drafts + 1
    assert 1 in emitted
    assert max(emitted) > 1
    record.metric("emitted a round", round(sum(emitted) / len(emitted), 4), "token", better="higher")


@pytest.mark.parametrize("drafts", [15, 31])
@pytest.mark.parametrize("draft", ["lookup", "dflash2+lookup"])
def test_greedy_with_wide_verification(
    draft: str, drafts: int, quasar: Path, quasar_draft: Path, engine_of: EngineOf
) -> None:
    params = SamplingParams(max_tokens=48, stop_token_ids=())
    expected = engine_of(quasar, **settings_of("lookup", quasar_draft)).generate(CYCLE, replace(params, draft_tokens=0))
    drafting = engine_of(quasar, draft_tokens=drafts, **settings_of(draft, quasar_draft))
    assert drafting.generate(CYCLE, params).token_ids == expected.token_ids


@pytest.mark.parametrize("text", ["copy", "code", "prose"])
def test_greedy_on_a_larger_model(text: str, smollm2: Path, engine_of: EngineOf, record: Record) -> None:
    """SmolLM2 has a vocabulary of 49,152 and quantised weights of another kind; lookup drafts for it."""
    messages = {
        "copy": "Repeat this text word by word: All that glitters is not gold, often have you heard that told.",
        "code": "Repeat this line three times: for (int i = 0; i < n; ++i) sum += a[i];",
        "prose": "Why is the sky blue?",
    }
    plain, lookup = (engine_of(smollm2, draft=draft, max_model_len=300) for draft in ("none", "lookup"))
    prompt = plain.chat_prompt(messages[text])
    params = SamplingParams(max_tokens=24, stop_token_ids=())
    one, other = plain.generate(prompt, params), lookup.generate(prompt, params)
    assert other.token_ids == one.token_ids
    record.tokens(text, [one.token_ids], [str(one.finish_reason)], rounds=other.rounds)


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_request_does_not_depend_on_its_neighbours(
    draft: str, quasar: Path, quasar_draft: Path, engine_of: EngineOf
) -> None:
    """Seeded and drawn, alone and in a batch whose rows, widths and slots change: the same tokens and rounds."""
    llm = engine_of(quasar, draft_tokens=K, **settings_of(draft, quasar_draft))
    params = [
        drawn(count, seed, draft_tokens=width)
        for seed, (count, width) in enumerate([(24, None), (7, 0), (16, 3), (20, None)])
    ]
    prompts = [*PROMPTS, CYCLE]
    together = llm.generate_batch(prompts, params)
    for index in (2, 0, 3, 1):
        alone = llm.generate(prompts[index], params[index])
        assert (alone.token_ids, alone.emitted) == (together[index].token_ids, together[index].emitted)


def test_unseeded_requests_leave_seeded_ones_alone(quasar: Path, quasar_draft: Path, engine_of: EngineOf) -> None:
    llm = engine_of(quasar, draft_tokens=K, **settings_of("dflash2", quasar_draft))
    seeded, unseeded = drawn(16, 9), SamplingParams(max_tokens=16, temperature=50.0, stop_token_ids=())
    prompt = PROMPTS[0]
    alone = llm.generate(prompt, seeded)
    runs = [llm.generate_batch([prompt, prompt], [unseeded, seeded]) for _ in range(3)]
    assert {run[1].token_ids for run in runs} == {alone.token_ids}
    assert len({run[0].token_ids for run in runs}) == 3
    assert len({run[0].seed for run in runs}) == 3


def exact_pairs(llm: LLM, prompt: Sequence[int], first: int, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """P(x1, x2 | prompt, first) by two forwards of known tokens: no drafting, no rejection, no random number."""

    def law(text: Sequence[int]) -> dict[int, float]:
        sequence = llm.pools.sequence(text)
        reservation = sequence.reserve(len(text), all_stay=True)
        rows = SequenceRows(text, reservation, sequence.block_table, num_logits=1)
        verification = verification_of(len(text), llm.runner.forward([rows], prefill=True), params)
        assert isinstance(verification, Verification)
        (row,) = verification.target_laws
        assert isinstance(row, LogitsLaw)
        tokens, probs = row.support()
        sequence.release()
        return dict(zip(tokens.tolist(), probs.tolist(), strict=True))

    one = law([*prompt, first])
    return {
        (token, other): probability * rest
        for token, probability in one.items()
        for other, rest in law([*prompt, first, token]).items()
    }


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_sampled_law_is_the_targets(
    draft: str, quasar: Path, quasar_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """The two tokens after the first, over 400 seeds, against their exact joint law by chi-square at 1e-6.

    After a copied prefix both drafters are often right; a hot law cut to its best four gives each a share. Where
    the model is so sure that one pair has nearly all of it, nothing could be seen: the case states what it would find.
    """
    prompt = [*asked(COPIES[2]), *plain("The old lighthouse keeper walked")]
    crowd = {"max_sequences": 40, "max_model_len": 128, "prefix_reuse": True, "block_size": 4}
    llm = engine_of(quasar, draft_tokens=3, **settings_of(draft, quasar_draft, **crowd))
    params = [
        SamplingParams(max_tokens=3, temperature=6.0, top_k=4, seed=seed, stop_token_ids=()) for seed in range(SEEDS)
    ]
    llm.generate(prompt, params[0])  # the others find its blocks
    results = llm.generate_batch([prompt] * SEEDS, params)
    of_pairs, of_the_next = _ChiSquare(), _ChiSquare()
    for first, count in Counter(result.token_ids[0] for result in results).items():
        exact = exact_pairs(llm, prompt, first, params[0])
        seen = Counter(result.token_ids[1:] for result in results if result.token_ids[0] == first)
        assert set(seen) <= set(exact), f"pairs that the target cannot draw: {set(seen) - set(exact)}"
        of_pairs.add(exact, seen, count)
        of_the_next.add(_of_the_first(exact), _of_the_first(seen), count)
    for what, found in (("pairs", of_pairs), ("the next token", of_the_next)):
        assert found.statistic <= found.limit, (
            f"{what}: chi-square {found.statistic:.1f} over {found.bins} degrees, allowed {found.limit:.1f}"
        )
        least = least_error_found(found.bins, SEEDS)
        assert least <= LEAST_ERROR, f"{what}: an error of {least:.2f} in the law could be missed: no power"
        record.metric(
            f"{what}: chi-square over its limit", round(found.statistic / found.limit, 6), "1", better="lower"
        )
        record.metric(f"{what}: total variation found 95 times of 100", round(least, 3), "1", better="lower")
    accepted = sum(sum(result.acceptance_histogram[1:]) for result in results)
    assert accepted > LEAST_ACCEPTING, "hardly anything was accepted: the case has no power"
    record.metric("rounds that accepted", accepted, "round")


@dataclass
class _ChiSquare:
    """The statistic over several laws; shares of which fewer than 5 are expected stand together."""

    statistic: float = 0.0
    bins: int = 0

    @property
    def limit(self) -> float:
        return float(stats.chi2.isf(ALPHA, self.bins))

    def add(self, exact: Mapping[Any, float], seen: Mapping[Any, float], count: int) -> None:
        rare = [outcome for outcome, probability in exact.items() if probability * count < 5]
        groups = [[outcome] for outcome in exact if outcome not in rare] + ([rare] if rare else [])
        for group in groups:
            expected = count * sum(exact[outcome] for outcome in group)
            self.statistic += (sum(seen.get(outcome, 0) for outcome in group) - expected) ** 2 / expected
        self.bins += len(groups) - 1


def _of_the_first(pairs: Mapping[tuple[int, ...], float]) -> dict[int, float]:
    single: dict[int, float] = {}
    for (token, *_), share in pairs.items():
        single[token] = single.get(token, 0) + share
    return single


def least_error_found(bins: int, draws: int) -> float:
    """The total variation that chi-square at ALPHA misses at most MISSED of the time, whichever way the law errs.

    A law off by d has at least 4 d^2 of noncentrality a draw: sum (p' - p)^2 / p >= (sum |p' - p|)^2 by Cauchy and
    Schwarz, with equality where every share is off by the same part of itself. Fewer degrees find smaller errors, and
    with none there is nothing to find.
    """
    if not bins:
        return 1.0
    limit = stats.chi2.isf(ALPHA, bins)
    shift = optimize.brentq(lambda moved: stats.ncx2.sf(limit, bins, moved) - (1 - MISSED), 1e-3, 1e4)
    return float(math.sqrt(shift / draws) / 2)


def test_the_least_error_is_found_as_often_as_it_says() -> None:
    """Eight equal shares, half of them off by d upwards and half downwards, 2,000 times: 95 % within four errors."""
    off = least_error_found(7, SEEDS)
    law = np.repeat([(1 + 2 * off) / 8, (1 - 2 * off) / 8], 4)
    counts = np.random.default_rng(1).multinomial(SEEDS, law, size=2000)
    statistic = ((counts - SEEDS / 8) ** 2 / (SEEDS / 8)).sum(1)
    share = float((statistic > stats.chi2.isf(ALPHA, 7)).mean())
    assert share == pytest.approx(1 - MISSED, abs=4 * math.sqrt(MISSED * (1 - MISSED) / 2000))
    assert least_error_found(0, SEEDS) == 1.0
