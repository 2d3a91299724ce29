"""Speculation changes how many tokens a round emits, never which: greedy token for token, sampled in law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scipy import stats

from engine.model.runner import SequenceRows
from engine.request import SamplingParams
from engine.sampling.rules import LogitsRules
from engine.steps.laws import verification_of
from engine.steps.records import Verification
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf

if TYPE_CHECKING:
    from engine.llm import LLM

pytestmark = pytest.mark.group("same tokens")

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
PROMPTS = {"periodic": PROMPT, "cycle": [70, 71, 72] * 7, "one-token": [8], "no-repeat": list(range(20, 45))}
FUSION = {"fusion_weak": 1, "fusion_strong": 3, "fusion_agree": 1, "fusion_tail": 2}
# Rounds that must accept something, or the sampled law is shown of rejection alone.
LEAST_ACCEPTING = {"lookup": 60, "dflash2": 30, "dflash2+lookup": 30}
ALPHA = 1e-6  # false-alarm rate of a statistical case over the choice of its seeds


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, stop_token_ids=())


def settings_of(draft: str, folder: Path) -> dict[str, Any]:
    if draft == "lookup":
        return {"draft": draft, "lookup_min": 1}
    return {"draft": draft, "draft_model": folder, **FUSION}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("draft", ["lookup", "dflash2", "dflash2+lookup"])
def test_greedy(draft: str, drafts: int, prompt: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf) -> None:
    plain = engine_of(hybrid).generate(PROMPTS[prompt], greedy(32))
    drafting = engine_of(hybrid, draft_tokens=drafts, **settings_of(draft, wide_draft))
    drafted = drafting.generate(PROMPTS[prompt], greedy(32))
    assert drafted.token_ids == plain.token_ids
    assert plain.emitted == (1,) * 31
    assert max(drafted.emitted) <= drafts + 1


@pytest.mark.parametrize("drafts", [15, 31])
@pytest.mark.parametrize("draft", ["lookup", "dflash2+lookup"])
def test_greedy_with_wide_verification(
    draft: str, drafts: int, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    plain = engine_of(hybrid).generate(PROMPTS["cycle"], greedy(48))
    drafting = engine_of(hybrid, draft_tokens=drafts, **settings_of(draft, wide_draft))
    assert drafting.generate(PROMPTS["cycle"], greedy(48)).token_ids == plain.token_ids


def test_something_is_accepted_and_something_rejected(
    hybrid: Path, wide_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """The cases above have power only where rounds of both kinds happen."""
    for draft in ("lookup", "dflash2", "dflash2+lookup"):
        llm = engine_of(hybrid, draft_tokens=7, **settings_of(draft, wide_draft))
        histogram = [0] * 8
        for prompt in (PROMPTS["periodic"], PROMPTS["cycle"]):
            for accepted, rounds in enumerate(llm.generate(prompt, greedy(32)).acceptance_histogram):
                histogram[accepted] += rounds
        assert histogram[0] > 0
        assert sum(histogram[1:]) > 0
        record.metric(f"{draft}: rounds that accepted", sum(histogram[1:]), "round")


@pytest.mark.parametrize("text", ["copy", "code", "prose"])
def test_greedy_on_the_real_model(text: str, smollm2: Path, engine_of: EngineOf, record: Record) -> None:
    messages = {
        "copy": "Repeat this text word by word: All that glitters is not gold, often have you heard that told.",
        "code": "Repeat this line three times: for (int i = 0; i < n; ++i) sum += a[i];",
        "prose": "Why is the sky blue?",
    }
    plain, lookup = (engine_of(smollm2, draft=draft, max_model_len=300) for draft in ("none", "lookup"))
    prompt = plain.chat_prompt(messages[text])
    one, other = plain.generate(prompt, greedy(32)), lookup.generate(prompt, greedy(32))
    assert other.token_ids == one.token_ids
    record.tokens(text, [one.token_ids], [str(one.finish_reason)], rounds=other.rounds)


@pytest.mark.parametrize("draft", ["lookup", "dflash2", "dflash2+lookup"])
def test_a_request_does_not_depend_on_its_neighbours(
    draft: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    """Seeded and hot, alone and in a batch whose rows, widths and slots change: the same tokens and the same rounds."""
    llm = engine_of(hybrid, draft_tokens=7, max_sequences=4, **settings_of(draft, wide_draft))
    params = [
        SamplingParams(max_tokens=count, temperature=50.0, seed=seed, draft_tokens=width, stop_token_ids=())
        for seed, (count, width) in enumerate([(30, None), (7, 0), (18, 3), (24, None)])
    ]
    prompts = list(PROMPTS.values())
    together = llm.generate_batch(prompts, params)
    for index in (2, 0, 3, 1):
        alone = llm.generate(prompts[index], params[index])
        assert (alone.token_ids, alone.emitted) == (together[index].token_ids, together[index].emitted)


def test_unseeded_requests_leave_seeded_ones_alone(hybrid: Path, wide_draft: Path, engine_of: EngineOf) -> None:
    llm = engine_of(hybrid, draft_tokens=7, max_sequences=4, **settings_of("dflash2", wide_draft))
    seeded = SamplingParams(max_tokens=16, temperature=50.0, seed=9, stop_token_ids=())
    unseeded = SamplingParams(max_tokens=16, temperature=50.0, stop_token_ids=())
    alone = llm.generate(PROMPT, seeded)
    runs = [llm.generate_batch([PROMPT, PROMPT], [unseeded, seeded]) for _ in range(3)]
    assert {run[1].token_ids for run in runs} == {alone.token_ids}
    assert len({run[0].token_ids for run in runs}) == 3
    assert len({run[0].seed for run in runs}) == 3


def exact_pairs(llm: LLM, prompt: Sequence[int], first: int, params: SamplingParams) -> dict[tuple[int, int], float]:
    """P(x1, x2 | prompt, first) by two forwards of known tokens: no drafting, no rejection, no random number."""

    def law(text: Sequence[int]) -> dict[int, float]:
        sequence = llm.pools.sequence(text)
        reservation = sequence.reserve(len(text), all_stay=True)
        rows = SequenceRows(text, reservation, sequence.block_table, num_logits=1)
        verification = verification_of(len(text), llm.runner.forward([rows], prefill=True), params)
        assert isinstance(verification, Verification)
        (row,) = verification.target_laws
        found = {token: row.probability(token) for token in range(llm.runner.vocab_size)}
        sequence.release()
        return {token: probability for token, probability in found.items() if probability > 0}

    one = law([*prompt, first])
    return {
        (token, other): probability * rest
        for token, probability in one.items()
        for other, rest in law([*prompt, first, token]).items()
    }


@pytest.mark.parametrize("draft", LEAST_ACCEPTING)
def test_the_sampled_law_is_the_targets(
    draft: str, llama: Path, hybrid: Path, wide_draft: Path, engine_of: EngineOf, record: Record
) -> None:
    """The two tokens behind the first, over 600 seeds, against their exact joint law by chi-square at 1e-6.

    Four tokens are allowed and the prompt repeats three of them: the lookup drafts in every round, and often rightly; a
    random draft model knows nothing of the rule and is right now and then.
    """
    seeds, prompt = 600, [40, 41, 42] * 6
    target = llama if draft == "lookup" else hybrid
    llm = engine_of(target, draft_tokens=3, max_sequences=50, max_model_len=64, **settings_of(draft, wide_draft))
    rules = LogitsRules(allowed_ids=frozenset({40, 41, 42, 43}))
    params = [
        SamplingParams(max_tokens=3, temperature=4.0, rules=rules, seed=seed, stop_token_ids=())
        for seed in range(seeds)
    ]
    results = llm.generate_batch([prompt] * seeds, params)
    statistic, bins = 0.0, 0
    for first, count in Counter(result.token_ids[0] for result in results).items():
        exact = exact_pairs(llm, prompt, first, params[0])
        seen = Counter(result.token_ids[1:] for result in results if result.token_ids[0] == first)
        assert set(seen) <= set(exact), f"pairs that the target cannot draw: {set(seen) - set(exact)}"
        rare = [pair for pair, probability in exact.items() if probability * count < 5]
        groups = [[pair] for pair in exact if pair not in rare] + ([rare] if rare else [])
        for group in groups:
            expected = count * sum(exact[pair] for pair in group)
            statistic += (sum(seen[pair] for pair in group) - expected) ** 2 / expected
        bins += len(groups) - 1
    limit = float(stats.chi2.isf(ALPHA, bins))
    assert statistic <= limit, f"chi-square {statistic:.1f} over {bins} degrees, allowed {limit:.1f}"
    accepted = sum(sum(result.acceptance_histogram[1:]) for result in results)
    assert accepted > LEAST_ACCEPTING[draft], "hardly anything was accepted: the case has no power"
    record.metric("chi-square over its limit", round(statistic / limit, 6), "1", better="lower")
    record.metric("rounds that accepted", accepted, "round")
