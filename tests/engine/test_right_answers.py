"""The native path against the plain torch forward over the same weights, on the real model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InputError
from engine.llm import LLM
from engine.model.gguf_file import GgufFile
from engine.model.llama_reference import LlamaReference
from engine.request import SamplingParams

TOKENS = 64
PROMPTS = (
    "Why is the sky blue?",
    "Write a short story about a fox and a river.",
    "List the first twelve prime numbers and explain what a prime is.",
    "Translate into French: The library closes at nine in the evening.",
    "Explain how a bicycle stays upright, for a curious child.",
)
# The native products hold activations as 16-bit fixed point by groups of 32: half a step is 2**-16 of the group's
# largest magnitude, which is at most sqrt(32) times its root mean square. 121 products in a row add up like a random
# walk, on logits of up to 40. Float32 rounding of either side is far below that.
LOGIT_ERROR = 40 * 121**0.5 * 32**0.5 * 2**-16
NO_STOP = SamplingParams(max_tokens=TOKENS, stop_token_ids=())


@pytest.fixture(scope="module")
def reference(model_file: GgufFile) -> LlamaReference:
    return LlamaReference(model_file)


@pytest.fixture(scope="module")
def lookup_llm(model_path: object) -> LLM:
    return LLM(EngineConfig(draft="lookup", prefill_chunk=24))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_those_of_the_plain_forward(llm: LLM, reference: LlamaReference, prompt: str) -> None:
    prompt_ids = llm.chat_prompt(prompt)
    token_ids = llm.generate(prompt_ids, NO_STOP).token_ids
    assert len(token_ids) == TOKENS
    # After the same text the plain forward must choose the same token, 64 times over: one forward tells them all.
    logits = reference.logits([*prompt_ids, *token_ids[:-1]])[len(prompt_ids) - 1 :]
    best = logits.topk(2)
    for index, token_id in enumerate(token_ids):
        if token_id != int(best.indices[index, 0]):
            gap = float(best.values[index, 0] - logits[index, token_id])
            assert gap < 2 * LOGIT_ERROR, f"token {index}: {token_id} is {gap} below {best.indices[index].tolist()}"


def test_native_logits_are_close_to_the_plain_ones(llm: LLM, reference: LlamaReference) -> None:
    prompt_ids = llm.chat_prompt(PROMPTS[0])
    logits = torch.stack(list(_logits_after_each_token(llm, prompt_ids)))
    expected = reference.logits(prompt_ids)
    assert float((logits - expected).abs().max()) < LOGIT_ERROR


def _logits_after_each_token(llm: LLM, token_ids: list[int]) -> Iterator[torch.Tensor]:
    """Prefill one token at a time, as decode does, and copy the row of logits behind each."""
    from engine.model.runner import SequenceRows
    from engine.state.sequence import SequenceState

    sequence = SequenceState(token_ids, llm.pool)
    for token_id in token_ids:
        reservation = sequence.reserve(1)
        yield llm.runner.forward([SequenceRows([token_id], reservation, sequence.block_table, num_logits=1)])[0].clone()
        sequence.commit(1)
    sequence.release()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_lookup_gives_the_same_greedy_tokens(llm: LLM, lookup_llm: LLM, prompt: str) -> None:
    prompt_ids = llm.chat_prompt(prompt)
    plain, looked_up = llm.generate(prompt_ids, NO_STOP), lookup_llm.generate(prompt_ids, NO_STOP)
    assert looked_up.token_ids == plain.token_ids
    assert plain.rounds == TOKENS - 1
    assert sum(looked_up.emitted) == TOKENS - 1


def test_lookup_accepts_what_repeats(lookup_llm: LLM) -> None:
    prompt = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog near the river bank."
    result = lookup_llm.generate(lookup_llm.chat_prompt(prompt), SamplingParams(max_tokens=80))
    assert result.emitted_per_round is not None
    assert result.emitted_per_round > 1.5
    assert sum(index * count for index, count in enumerate(result.acceptance_histogram)) > 0


def test_a_batch_gives_each_request_what_it_gets_alone(llm: LLM) -> None:
    params = [
        SamplingParams(max_tokens=24),
        SamplingParams(max_tokens=30, temperature=0.8, top_k=20, top_p=0.95, seed=1),
        SamplingParams(max_tokens=9, temperature=1.0, seed=2),
        SamplingParams(max_tokens=24, temperature=1.5, top_p=0.9, seed=3),
    ]
    prompts = [llm.chat_prompt(prompt) for prompt in PROMPTS[:4]]
    together = llm.generate_batch(prompts, params)
    alone = [llm.generate(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]


def test_a_crowded_cache_changes_no_token(llm: LLM) -> None:
    small = LLM(EngineConfig(draft="lookup", kv_cache_tokens=160, prefill_chunk=17))
    prompts = [llm.chat_prompt(prompt) for prompt in PROMPTS[:3]]
    crowded = small.generate_batch(prompts, SamplingParams(max_tokens=48, stop_token_ids=()))
    for prompt, result in zip(prompts, crowded, strict=True):
        assert result.token_ids == llm.generate(prompt, SamplingParams(max_tokens=48, stop_token_ids=())).token_ids


def test_a_seed_names_the_tokens(llm: LLM) -> None:
    prompt = llm.chat_prompt(PROMPTS[1])
    drawn = [
        llm.generate(prompt, SamplingParams(max_tokens=16, temperature=1.0, top_k=20, top_p=0.95, seed=seed)).token_ids
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    fresh = llm.generate(prompt, SamplingParams(max_tokens=4, temperature=1.0))
    again = llm.generate(prompt, SamplingParams(max_tokens=4, temperature=1.0, seed=fresh.seed))
    assert again.token_ids == fresh.token_ids


def test_a_reply_stops_by_itself_and_at_the_context(llm: LLM) -> None:
    result = llm.generate(llm.chat_prompt("Say hello."), SamplingParams(max_tokens=100))
    assert result.finish_reason == "stop"
    assert result.token_ids[-1] in llm.tokenizer.eos_token_ids
    assert "<|im_end|>" not in result.text
    short = LLM(EngineConfig(max_model_len=48, draft="lookup"))
    full = short.generate([5] * 40, SamplingParams(max_tokens=100, stop_token_ids=()))
    assert (len(full.token_ids), full.finish_reason) == (8, "length")


def test_requests_that_cannot_run_are_refused_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(InputError, match="token id 99999 in the prompt; allowed: 0 to 49151"):
        llm.generate([99999])
    with pytest.raises(InputError, match="the prompt has 9000 tokens; allowed: up to 8191"):
        llm.generate([5] * 9000)
    tight = LLM(EngineConfig(kv_cache_tokens=64))
    with pytest.raises(InputError, match=r"needs .* KV slots .* the cache has 64"):
        tight.generate([5] * 40, SamplingParams(max_tokens=60))
    assert len(tight.generate([5] * 8, SamplingParams(max_tokens=4, stop_token_ids=())).token_ids) == 4


def test_leaving_a_stream_early_hands_everything_back(llm: LLM) -> None:
    free = llm.pool.num_free
    stream = llm.stream(llm.chat_prompt(PROMPTS[1]), SamplingParams(max_tokens=200))
    pieces = list(itertools.islice(stream, 5))
    del stream
    assert len(pieces) == 5
    assert llm.pool.num_free == free


def test_text_in_pieces_is_the_text(llm: LLM) -> None:
    stream = llm.stream(llm.chat_prompt("Write three emoji and a word in Japanese."), SamplingParams(max_tokens=40))
    text = "".join(stream)
    assert text == stream.result().text
    assert text == llm.tokenizer.decode(stream.result().token_ids)


def test_half_precision_keys_and_values_stay_close(llm: LLM) -> None:
    half = LLM(EngineConfig(kv_cache_dtype="float16", kv_cache_tokens=512))
    prompt = llm.chat_prompt(PROMPTS[0])
    full_logits = torch.stack(list(_logits_after_each_token(llm, prompt)))
    half_logits = torch.stack(list(_logits_after_each_token(half, prompt)))
    # Keys and values lose 13 bits (relative 2**-11); the logits they lead to lie within 40.
    assert 0 < float((full_logits - half_logits).abs().max()) < 40 * 2**-11 * 30**0.5
