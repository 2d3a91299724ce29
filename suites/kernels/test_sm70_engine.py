"""The whole engine on the SM70 kernels beside the whole engine on the CPU: tokens, routes, graphs, drafts, one read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, read_environment
from engine.errors import InputError
from engine.request import SamplingParams
from engine.sampling.rules import LogitsRules
from engine.steps.laws import LogitsLaw
from engine.steps.read_ahead import ReadAhead
from engine.steps.records import Fault, Verification
from suites.kernels.engine_pairs import (
    EVERY_TOKEN,
    PROMPT,
    PUBLISHED_HEADS,
    SMALL_HEADS,
    draft_folder,
    engine,
    greedy,
    hybrid_folder,
    judged_by_cpu,
    logits_of,
    nvfp4_folder,
)
from suites.recording import Record
from suites.targets import Target

pytestmark = pytest.mark.group("sm70 engine")

HYBRID_LAYERS, QUASAR_TINY_LAYERS, SMOLLM2_LAYERS = 4, 8, 30
QUASAR_TINY = Path(__file__).resolve().parents[2] / "models" / "quasar-tiny"
TEXT = "Name the planets of the solar system in order, one per line, and after each its largest moon."


def _explained(model: Path, layers: int, prompt: tuple[int, ...], answer: tuple[int, ...], cache: str = "auto") -> int:
    """How many tokens the CPU would have chosen otherwise; each by a gap that float16 activations may close."""
    disagreements = judged_by_cpu(model, layers, prompt, answer, cache)
    for seen in disagreements:
        assert seen.gap < seen.allowed, (
            f"token {seen.position}: the CPU takes {seen.wanted}, the device took {seen.taken}; gap {seen.gap:.4f}, "
            f"float16 activations may close {seen.allowed:.4f}"
        )
    return len(disagreements)


@pytest.fixture(scope="module")
def smollm2() -> Path | str:
    """The real model, or why it is not there."""
    try:
        from engine.model.weights_gguf import default_model_path

        return read_environment(os.environ).model or default_model_path()
    except (ModuleNotFoundError, ValueError) as missing:
        return str(missing)


def _needs(model: Path | str, record: Record) -> Path:
    if isinstance(model, str):
        record.not_run(model)
    return model


@pytest.mark.parametrize("heads", [SMALL_HEADS, PUBLISHED_HEADS], ids=["d64", "d256"])
@pytest.mark.parametrize("cache", ["float16", "fp8_e4m3"])
def test_hybrid_takes_the_tokens_of_the_cpu(
    sm70: Target, record: Record, heads: tuple[int, int, int], cache: str
) -> None:
    """Convolution, gates, rule in chunks and token by token, gated norm, routed attention, FP32 head."""
    model = hybrid_folder(heads)
    answer = greedy(engine(model, "cuda", kv_cache_dtype=cache), 24)
    record.metric("explained", _explained(model, HYBRID_LAYERS, PROMPT, answer, cache), "tokens", exact=False)


def test_packed_projections_take_the_tokens_of_the_cpu(sm70: Target, record: Record) -> None:
    """NVFP4 codes and block scales as the checkpoint has them, on both sides."""
    model = nvfp4_folder()
    answer = greedy(engine(model, "cuda"), 24)
    record.metric("explained", _explained(model, HYBRID_LAYERS, PROMPT, answer), "tokens", exact=False)


def test_the_small_trained_model_takes_the_tokens_of_the_cpu(sm70: Target, record: Record) -> None:
    """quasar-tiny: NVFP4 projections and FP16 tables as stored; its own draft model changes no token."""
    target = QUASAR_TINY / "target"
    if not target.is_dir():
        record.not_run(f"{target} is not there")
    count = 128 if sm70.name == "cuda" else 8
    plain = engine(target, "cuda", max_model_len=512, max_sequences=1)
    prompt = tuple(plain.chat_prompt(TEXT))
    answer = greedy(plain, count, prompt)
    record.metric("explained", _explained(target, QUASAR_TINY_LAYERS, prompt, answer), "tokens", exact=False)
    drafting = engine(
        target, "cuda", max_model_len=512, max_sequences=1, draft="dflash2", draft_model=QUASAR_TINY / "draft"
    )
    assert greedy(drafting, count, prompt) == answer


def test_smollm2_takes_the_tokens_of_the_cpu(gpu: Target, record: Record, smollm2: Path | str) -> None:
    """GGUF Q4_1 and Q8_0 tiles as they are, interleaved RoPE, FP32 logits out of a Q8_0 head; 128 tokens."""
    model = _needs(smollm2, record)
    llm = engine(model, "cuda", max_model_len=512)
    prompt = tuple(llm.chat_prompt(TEXT))
    answer = greedy(llm, 128, prompt)
    record.metric("explained", _explained(model, SMOLLM2_LAYERS, prompt, answer), "tokens", exact=False)


def test_lookup_changes_no_token(sm70: Target) -> None:
    """A row that is verified has the bits of the same row decoded."""
    model = hybrid_folder(SMALL_HEADS)
    plain = greedy(engine(model, "cuda"), 24)
    looked_up = engine(model, "cuda", draft="lookup", draft_tokens=4)
    assert greedy(looked_up, 24) == plain
    assert any(name.startswith("smallq") for name in looked_up.runner.attention.routes()), "nothing was verified"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_model_changes_no_token(sm70: Target, temperature: float) -> None:
    """DFlash2 on the device: the same greedy tokens, drafted blocks or not; sampled, every round is whole."""
    model = hybrid_folder(SMALL_HEADS)
    drafting = engine(model, "cuda", draft="dflash2", draft_model=draft_folder(), draft_tokens=7)
    params = SamplingParams(max_tokens=20, stop_token_ids=(), temperature=temperature, seed=6)
    result = drafting.generate(PROMPT, params)
    assert len(result.token_ids) == 20, result.error
    assert any(name.startswith("smallq") for name in drafting.runner.attention.routes()), "nothing was verified"
    if temperature == 0:
        assert tuple(result.token_ids) == greedy(engine(model, "cuda"), 20)


def test_routes_are_those_of_the_policy(sm70: Target) -> None:
    """The published heads: one request on an E5M2 cache is verified in one group, on an E4M3 cache decoded by XQA."""
    model = hybrid_folder(PUBLISHED_HEADS, context=32768)
    room = {"kv_cache_tokens": 512, "max_sequences": 1}
    drafting = engine(model, "cuda", draft="lookup", kv_cache_dtype="fp8_e5m2", **room)
    greedy(drafting, 8, EVERY_TOKEN)
    routes = drafting.runner.attention.routes()
    assert routes["prefill_bridge_paged"] == 1, routes
    assert routes["grouped_verify"] >= 1, routes
    plain = engine(model, "cuda", kv_cache_dtype="fp8_e4m3", **room)
    greedy(plain, 8)
    assert plain.runner.attention.routes() == {"prefill_paged": 1, "decode_xqa": 7}


def test_a_batch_changes_no_token(sm70: Target) -> None:
    """Two requests together, prefill chunks and rounds, against each alone."""
    llm = engine(hybrid_folder(SMALL_HEADS), "cuda")
    prompts = (PROMPT, (70, 71, 72, 9, 40, 41))
    params = SamplingParams(max_tokens=12, stop_token_ids=())
    together = llm.generate_batch(prompts, params)
    assert [tuple(result.token_ids) for result in together] == [greedy(llm, 12, prompt) for prompt in prompts]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_round_is_read_once(sm70: Target, monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """Laws, drafts and random numbers of a round come in one read: nothing else asks a row."""
    llm = engine(hybrid_folder(SMALL_HEADS), "cuda", draft="lookup", draft_tokens=4)
    reads: list[int] = []
    read = ReadAhead.read

    def counted(ahead: ReadAhead, logits: torch.Tensor) -> list[Verification | Fault]:
        reads.append(len(logits))
        return read(ahead, logits)

    monkeypatch.setattr(ReadAhead, "read", counted)
    for name in ("probability", "draw", "support"):
        monkeypatch.setattr(LogitsLaw, name, lambda *_: pytest.fail("a row was read by itself"))
    params = SamplingParams(max_tokens=24, stop_token_ids=(), temperature=temperature, seed=4)
    result = llm.generate(EVERY_TOKEN, params)
    assert len(reads) == 1 + result.rounds
    assert max(reads) > 1, "nothing was drafted: the case has no power"


def test_forms_of_rejection_and_rules_on_the_device(sm70: Target) -> None:
    """What is read ahead, the sparse form and rows that a rule has touched: one law, so one text."""
    model = hybrid_folder(SMALL_HEADS)
    dense = engine(model, "cuda", draft="lookup", draft_tokens=4)
    sparse = engine(model, "cuda", draft="lookup", draft_tokens=4, rejection="sparse")
    sampled = SamplingParams(temperature=0.9, top_k=12, seed=8, max_tokens=24, stop_token_ids=())
    plain = dense.generate(EVERY_TOKEN, sampled)
    assert sparse.generate(EVERY_TOKEN, sampled).token_ids == plain.token_ids
    # A bias of nothing asks for the row to be touched, so nothing is read ahead; reports are of each token.
    touched = LogitsRules(logit_bias={5: 0.0})
    ruled = dense.generate(EVERY_TOKEN, replace(sampled, rules=touched, logprobs=2))
    assert ruled.token_ids == plain.token_ids
    assert len(ruled.logprobs) == len(ruled.token_ids)
    banned = dense.generate(PROMPT, replace(sampled, rules=LogitsRules(banned_ids=frozenset(range(50, 99)))))
    assert max(banned.token_ids) < 50


def test_a_head_size_without_a_route_is_refused(sm70: Target) -> None:
    with pytest.raises(InputError, match=r"layer\.head_dim: saw D 32; allowed: 64, 128, 256"):
        engine(hybrid_folder((4, 2, 32)), "cuda")


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_graphs_change_no_token_and_no_bit(gpu: Target, draft: str) -> None:
    """Rounds replayed from graphs against rounds launched kernel by kernel: tokens, logits, caches and states."""
    model = hybrid_folder(SMALL_HEADS)
    settings = {"draft": draft, "draft_tokens": 4, "max_sequences": 5}
    captured, eager = engine(model, "cuda", **settings), engine(model, "cuda", cuda_graphs=False, **settings)
    assert greedy(captured, 96, EVERY_TOKEN) == greedy(eager, 96, EVERY_TOKEN)
    graphs = captured.runner.graphs
    assert graphs is not None
    assert graphs.captured >= 1
    assert graphs.replayed > 60 if draft == "none" else graphs.replayed > 5
    assert eager.runner.graphs is None
    assert torch.equal(logits_of(captured, PROMPT[:5]), logits_of(eager, PROMPT[:5]))
    for cache in (captured.model.cache, eager.model.cache):
        assert bool(cache.keys(0)[1].isfinite().all())
    assert torch.equal(captured.model.cache.keys(0)[1:3], eager.model.cache.keys(0)[1:3])
    assert captured.runner.attention.routes() == eager.runner.attention.routes()


def test_graphs_of_uneven_rounds_change_no_token(gpu: Target) -> None:
    """Three requests that draft differently: a graph fixes how many rows there are, not whose they are."""
    model = hybrid_folder(SMALL_HEADS)
    prompts = (EVERY_TOKEN, PROMPT, (70, 71, 72, 9, 40, 41) * 3)
    params = SamplingParams(max_tokens=40, stop_token_ids=())
    settings = {"draft": "lookup", "draft_tokens": 4, "max_sequences": 3, "kv_cache_tokens": 768}
    captured, eager = engine(model, "cuda", **settings), engine(model, "cuda", cuda_graphs=False, **settings)
    answers = [[result.token_ids for result in llm.generate_batch(prompts, params)] for llm in (captured, eager)]
    assert answers[0] == answers[1]
    assert captured.runner.graphs is not None
    assert captured.runner.graphs.replayed > captured.runner.graphs.captured >= 2
    assert captured.runner.attention.routes() == eager.runner.attention.routes()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("draft", ["none", "lookup"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_a_round_waits_for_nothing_but_its_read(gpu: Target, graphs: bool, draft: str) -> None:
    """Torch raises at any wait for the device inside a forward."""
    llm = engine(hybrid_folder(SMALL_HEADS), "cuda", cuda_graphs=graphs, max_sequences=1, draft=draft, draft_tokens=4)
    greedy(llm, 24, EVERY_TOKEN)
    forward = llm.runner.forward

    def watched(*arguments: object, **named: object) -> torch.Tensor:
        try:
            torch.cuda.set_sync_debug_mode("error")
            return forward(*arguments, **named)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm.runner.forward = watched  # type: ignore[method-assign]
    greedy(llm, 24, EVERY_TOKEN)


def test_device_names(record: Record) -> None:
    """What is no device, and a card that is not there, in one sentence each."""
    with pytest.raises(InputError, match="device is 'tpu'; allowed: cpu, cuda, cuda:N"):
        EngineConfig(device="tpu")
    with pytest.raises(InputError, match="device is 'cuda:99', there is"):
        engine(hybrid_folder(SMALL_HEADS), "cuda:99")
