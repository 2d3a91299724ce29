"""Whole requests with a draft model, on a random hybrid and a random Llama target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.errors import InputError, ModelFileError
from engine.llm import LLM
from engine.model.runner import SequenceRows
from engine.model.selector import Lattice
from engine.request import SamplingParams
from engine.result import GenerationResult
from engine.sampling.rules import LogitsRules
from engine.steps.context import RoundShape, pipeline_refusal
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, random_tensors, write_checkpoint

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
OTHERS = [[70, 71, 72] * 9, [*PROMPT[:18], 80, 81]]
# So hot that the target is nearly flat, and 64 candidates of 99 tokens: drafts are accepted now and then.
HOT = SamplingParams(temperature=8.0, seed=3, max_tokens=60, stop_token_ids=())
GREEDY = SamplingParams(max_tokens=40, stop_token_ids=())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"), random_tensors())


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = draft_config(CONFIG, selector_top_k=64)
    return write_draft(tmp_path_factory.mktemp("draft"), random_draft(config), config)


@pytest.fixture(scope="module")
def plain(target: Path) -> LLM:
    return LLM(EngineConfig(model=target))


def engine(target: Path, folder: Path, **settings: Any) -> LLM:
    return LLM(EngineConfig(model=target, draft_model=folder, **{"draft": "dflash2", **settings}))


def said(result: GenerationResult) -> tuple[object, ...]:
    """Everything of a result but its times."""
    return result.token_ids, result.finish_reason, result.emitted, result.acceptance_histogram, result.error


def test_greedy_tokens_are_those_of_plain_decode(target: Path, draft: Path, plain: LLM) -> None:
    llm = engine(target, draft)
    drafted = llm.generate(PROMPT, GREEDY)
    assert drafted.token_ids == plain.generate(PROMPT, GREEDY).token_ids
    assert sum(drafted.acceptance_histogram[1:]) > 0, "nothing was accepted: the test has no power"
    assert llm.pool.num_free == llm.pool.num_blocks - 1


def test_the_real_llama_drafts_too(tmp_path: Path, llm: LLM) -> None:
    """An untrained draft model for SmolLM2: hardly a draft is right, and no token changes."""
    sizes = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "max_position_embeddings": 2048}
    config = draft_config(sizes, target_layer_ids=[1, 14, 27])
    write_draft(tmp_path, random_draft(config), config)
    drafting = LLM(EngineConfig(draft="dflash2", draft_model=tmp_path, max_model_len=512))
    prompt, params = "Once upon a time", SamplingParams(max_tokens=12, stop_token_ids=())
    assert drafting.generate(prompt, params).token_ids == llm.generate(prompt, params).token_ids


def test_neighbours_crowding_and_prefixes_change_no_token(target: Path, draft: Path) -> None:
    llm = engine(target, draft)
    prompts = [PROMPT, *OTHERS]
    alone = [said(llm.generate(prompt, HOT)) for prompt in prompts]
    crowded = engine(target, draft, kv_cache_tokens=136, block_size=8, prefill_chunk=12, prefix_reuse=True)
    for _ in range(2):
        assert [said(result) for result in crowded.generate_batch(prompts, HOT)] == alone
    assert [said(result) for result in llm.generate_batch(prompts, HOT)] == alone


class Trace:
    """Every number that a run leaves behind a round: tap rows, context, lattices, cache pages, states, free blocks."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        assert llm.model.draft is not None
        self.seen: list[dict[str, torch.Tensor]] = []
        runner, model = llm.model.draft, llm.model
        store, draft = runner.store_context, runner.draft

        def stored(batch: Sequence[SequenceRows], kept: Sequence[int]) -> None:
            store(batch, kept)
            rows = sum(len(one.token_ids) for one in batch)
            context = runner._context.first(rows)
            self.seen.append(
                {
                    "kept": torch.tensor(kept),
                    "taps": context.taps.clone(),
                    "features": context.features.clone(),
                    "values": context.keys_values.clone(),
                    "keys": context.keys.clone(),
                    "pages": torch.nan_to_num(runner.model.cache._data.clone()),
                    "target pages": torch.nan_to_num(model.cache._data.clone()),
                    "free": torch.tensor(llm.pool.num_free),
                }
            )

        def drafted(batch: Any) -> Lattice:
            lattice = draft(batch)
            outputs = runner._outputs.first(len(batch) * runner.max_drafts)
            self.seen.append(
                {
                    "ids": torch.from_numpy(lattice.candidate_ids.copy()),
                    "unary": torch.from_numpy(lattice.unary.copy()),
                    "scores": lattice.scores.clone(),
                    "hidden": outputs.hidden.clone(),
                    "logits": outputs.logits.clone(),
                    "tokens": runner._inputs.token_ids.clone(),
                    "slots": runner._inputs.slot_mapping.clone(),
                }
            )
            return lattice

        monkeypatch.setattr(runner, "store_context", stored)
        monkeypatch.setattr(runner, "draft", drafted)
        # Memory that was never written is equal too when it starts equal.
        runner.model.cache._data.zero_()
        model.cache._data.zero_()


def test_the_pipeline_changes_no_bit(target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces, results = [], []
    for pipeline in (False, True):
        llm = engine(target, draft, context_pipeline=pipeline, max_sequences=3)
        traces.append(Trace(llm, monkeypatch))
        results.append([said(result) for result in llm.generate_batch([PROMPT, *OTHERS], HOT)])
        assert (llm.context.rounds["ahead"] >= 10) == pipeline
    assert results[0] == results[1]
    off, on = (trace.seen for trace in traces)
    assert len(off) == len(on)
    for index, (one, other) in enumerate(zip(off, on, strict=True)):
        for name in one:
            assert torch.equal(one[name], other[name]), f"step {index}: {name} differ"


@pytest.mark.parametrize("where", ["engine.llm.reject", "engine.llm.commit"])
def test_an_interrupted_round_leaves_an_engine_that_goes_on(
    target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    llm = engine(target, draft, context_pipeline=True)
    expected = said(llm.generate(PROMPT, HOT))
    calls: list[int] = []

    def interrupted(*_: object, **__: object) -> None:
        calls.append(len(calls))
        raise KeyboardInterrupt

    streamed = iter(llm.stream(PROMPT, HOT))
    for _ in range(4):
        next(streamed)
    with monkeypatch.context() as patch:
        patch.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(streamed)
    assert calls == [0]
    assert said(llm.generate(PROMPT, HOT)) == expected
    assert llm.pool.num_free == llm.pool.num_blocks - 1


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (RoundShape((8,), 0), None),
        (RoundShape((8, 8, 8), 0), None),
        (RoundShape((8,), 1), "a sequence prefills"),
        (RoundShape((8, 3), 0), r"rows of the sequences differ from K\+1"),
        (RoundShape((1,), 0), r"rows of the sequences differ from K\+1"),
    ],
)
def test_which_rounds_run_ahead(shape: RoundShape, reason: str | None) -> None:
    refusal = pipeline_refusal(shape, 8)
    assert refusal == (None if reason is None else reason.replace("\\", ""))


def test_each_request_has_its_own_k(target: Path, draft: Path, plain: LLM) -> None:
    llm = engine(target, draft)
    widths = (None, 0, 3)
    params = [SamplingParams(max_tokens=30, stop_token_ids=(), draft_tokens=width) for width in widths]
    results = llm.generate_batch([PROMPT] * 3, params)
    expected = plain.generate(PROMPT, SamplingParams(max_tokens=30, stop_token_ids=()))
    assert {result.token_ids for result in results} == {expected.token_ids}
    assert results[1].rounds == 29
    assert sum(results[2].acceptance_histogram[4:]) == 0
    with pytest.raises(InputError, match="draft-tokens of the request is 8; allowed: 0 to 7, the engine's own"):
        llm.generate(PROMPT, SamplingParams(draft_tokens=8))
    with pytest.raises(InputError, match="draft-tokens of the request is 1; allowed: 0 to 0"):
        plain.generate(PROMPT, SamplingParams(draft_tokens=1))


def test_joined_with_lookup(target: Path, draft: Path, plain: LLM) -> None:
    settings: dict[str, Any] = {"draft_tokens": 15, "fusion_weak": 2, "fusion_strong": 4, "fusion_tail": 2}
    params = SamplingParams(max_tokens=60, stop_token_ids=())
    for agree in (0, 1, 3):
        llm = engine(target, draft, draft="dflash2+lookup", fusion_agree=agree, **settings)
        joined = llm.generate([70, 71, 72] * 9, params)
        assert joined.token_ids == plain.generate([70, 71, 72] * 9, params).token_ids
        hot = llm.generate_batch([PROMPT, *OTHERS], HOT)
        assert [said(result) for result in hot] == [said(llm.generate(one, HOT)) for one in (PROMPT, *OTHERS)]
    assert len(joined.acceptance_histogram) == 16


def test_both_forms_of_rejection_emit_the_same_tokens(target: Path, draft: Path) -> None:
    params = SamplingParams(temperature=3.0, top_k=20, top_p=0.95, seed=5, max_tokens=60, stop_token_ids=())
    results = [
        said(engine(target, draft, rejection=form, draft="dflash2+lookup", fusion_weak=3).generate(PROMPT, params))
        for form in ("dense", "sparse")
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 9])
def test_the_last_token_may_lie_inside_a_block(target: Path, draft: Path, plain: LLM, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=())
    assert engine(target, draft).generate(PROMPT, params).token_ids == plain.generate(PROMPT, params).token_ids


def test_a_block_at_the_end_of_the_context(target: Path, draft: Path) -> None:
    params = SamplingParams(max_tokens=200, stop_token_ids=())
    drafted = engine(target, draft, max_model_len=40).generate(PROMPT, params)
    assert drafted.token_ids == LLM(EngineConfig(model=target, max_model_len=40)).generate(PROMPT, params).token_ids
    assert len(drafted.token_ids) == 19


RULES = LogitsRules(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.2,
    logit_bias={7: 2.5},
    banned_ids=frozenset({5, 60}),
    min_p=0.02,
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_see_the_draft_in_front_of_a_row(target: Path, draft: Path, plain: LLM, temperature: float) -> None:
    """Greedy: the same tokens with and without drafts; drawn: none that is banned, reports of the head's own rows."""
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=30, stop_token_ids=(), rules=RULES, logprobs=2)
    llm = engine(target, draft)
    drafted = llm.generate(PROMPT, params)
    assert not set(drafted.token_ids) & RULES.banned_ids
    if temperature == 0:
        alone = plain.generate(PROMPT, params)
        assert drafted.token_ids == alone.token_ids
        assert drafted.logprobs == alone.logprobs
        free = plain.generate(PROMPT, SamplingParams(max_tokens=30, stop_token_ids=()))
        assert drafted.token_ids != free.token_ids, "the rules changed nothing: the test has no power"
    assert [report.chosen.token_id for report in drafted.logprobs] == list(drafted.token_ids)
    assert all(len(report.top) == 2 and report.chosen.logprob <= report.top[0].logprob for report in drafted.logprobs)


def test_ids_that_the_model_lacks_are_refused(plain: LLM) -> None:
    with pytest.raises(InputError, match="banned ids name token 99; allowed: 0 to 98"):
        plain.generate(PROMPT, SamplingParams(rules=LogitsRules(banned_ids=frozenset({99}))))
    with pytest.raises(InputError, match="logprobs is 100; allowed: up to the 99 tokens of the model"):
        plain.generate(PROMPT, SamplingParams(logprobs=100))
    with pytest.raises(InputError, match="banned ids name all 99 tokens of the model; leave at least one"):
        plain.generate(PROMPT, SamplingParams(rules=LogitsRules(banned_ids=frozenset(range(99)))))


def test_times_of_the_steps(target: Path, draft: Path) -> None:
    result = engine(target, draft).generate(PROMPT, GREEDY)
    assert len(result.step_times) == result.rounds
    for times, whole in zip(result.step_times, result.round_times_ms, strict=True):
        assert min(times.draft_s, times.verify_s, times.reject_s, times.commit_s) > 0
        assert times.overhead_s == times.draft_s + times.reject_s + times.commit_s
        assert times.overhead_s + times.verify_s <= whole / 1000 + times.draft_s  # context counts in the round after
    assert result.overhead_share is not None
    assert 0 < result.overhead_share < 1


def test_a_draft_that_is_not_finite_fails_its_own_request(
    target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(target, draft)
    assert llm.model.draft is not None
    honest = llm.model.draft.draft
    expected = llm.generate(PROMPT, GREEDY)

    def spoilt(batch: Any) -> Lattice:
        lattice = honest(batch)
        faults = tuple("spoilt" if one.reservation.start > 30 else None for one in batch)
        return Lattice(lattice.candidate_ids, lattice.unary, lattice.scores, faults)

    monkeypatch.setattr(llm.model.draft, "draft", spoilt)
    fine, failed = llm.generate_batch([PROMPT, [*PROMPT, *range(10, 25)]], SamplingParams(max_tokens=5))
    assert (failed.finish_reason, failed.error) == ("error", "spoilt")
    assert fine.token_ids == expected.token_ids[:5]
    assert llm.pool.num_free == llm.pool.num_blocks - 1


def test_drafts_that_do_not_fit_are_refused(target: Path, draft: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"draft-tokens is 8; .* was trained for blocks of 7: allowed 1 to 7"):
        engine(target, draft, draft_tokens=8)
    with pytest.raises(InputError, match="draft-tokens is 0; allowed: 1 to 31"):
        engine(target, draft, draft_tokens=0)
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        engine(target, tmp_path)
    with pytest.raises(ModelFileError, match=r"architectures .*; allowed: one of DFlash2DraftModel; this engine"):
        engine(target, target)
    config = draft_config({**CONFIG, "vocab_size": 120})
    with pytest.raises(ModelFileError, match="vocab_size is 120, the target's is 99"):
        engine(target, write_draft(tmp_path / "vocab", random_draft(config), config))
    config = {**draft_config(CONFIG), "max_position_embeddings": 128}
    short = write_draft(tmp_path / "short", random_draft(config), config)
    with pytest.raises(InputError, match=r"the draft model sees 128 positions, max-model-len is 256; allowed: --max-"):
        engine(target, short)
    assert engine(target, short, max_model_len=128).generate(PROMPT, GREEDY).rounds > 0


def test_corrupt_draft_weights_are_refused(target: Path, draft: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((draft / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes()[:-7])
    with pytest.raises(ModelFileError, match="cannot be read as safetensors"):
        engine(target, tmp_path)
    save_file({"fc.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"fc.weight has shape \(3,\); the config asks for \(48, 96\)"):
        engine(target, tmp_path)


def test_a_tap_that_the_target_lacks_is_refused(target: Path, draft: Path, tmp_path: Path) -> None:
    config = json.loads((draft / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 4]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=r"target_layer_ids name layers \[4\]; the target has 0 to 3"):
        engine(target, tmp_path)
