"""What cannot be drafted with is refused by name before a token is drawn; what fails at work fails alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import InputError, ModelFileError
from engine.llm import LLM
from engine.request import SamplingParams
from engine.steps.fusion import FusionSettings
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.tape import drafting

pytestmark = pytest.mark.group("bad input")

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62]


def load(hybrid: Path, folder: Path, **settings: Any) -> LLM:
    return LLM(EngineConfig(model=hybrid, draft_model=folder, threads=2, **{"draft": "dflash2", **settings}))


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A draft whose config says something else than its tensors."""
    config = draft_config(CONFIG)
    write_draft(folder, random_draft(config), config)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "vocabulary of another model": (lambda one: one.update(vocab_size=98), "vocab_size"),
    "hidden size of another model": (lambda one: one.update(hidden_size=96), "hidden_size"),
    "layers of another model": (lambda one: one.update(num_target_layers=5), "num_target_layers"),
    "a tap behind the last layer": (
        lambda one: one["dflash_config"].update(target_layer_ids=[0, 4]),
        "target_layer_ids",
    ),
    "no taps": (lambda one: one["dflash_config"].update(target_layer_ids=[]), "target_layer_ids"),
    "taps missing": (lambda one: one["dflash_config"].pop("target_layer_ids"), "target_layer_ids"),
    "a tap twice": (lambda one: one["dflash_config"].update(target_layer_ids=[1, 1]), "target_layer_ids"),
    "the first version of the format": (
        lambda one: one.update(architectures=["DFlashDraftModel"]),
        "DFlashDraftModel",
    ),
    "a target instead of a draft": (lambda one: one.update(architectures=["Qwen3NextForCausalLM"]), "architectures"),
    "no architecture": (lambda one: one.pop("architectures"), "architectures"),
    "mask outside of the vocabulary": (lambda one: one["dflash_config"].update(mask_token_id=99), "mask_token_id"),
    "more candidates than tokens": (lambda one: one["dflash_config"].update(selector_top_k=100), "selector_top_k"),
    "a block of one": (lambda one: one["dflash_config"].update(block_size=1), "block_size"),
    "groups that do not divide": (lambda one: one["dflash_config"].update(conv_group_size=7), "conv_group_size"),
    "a key nobody knows": (lambda one: one["dflash_config"].update(speed=9), "speed"),
    "causal": (lambda one: one.update(is_causal=True), "is_causal"),
    "context shorter than asked for": (lambda one: one.update(max_position_embeddings=100), "max-model-len"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_does_not_fit(name: str, hybrid: Path, tmp_path: Path) -> None:
    change, named = CONFIGS[name]
    with pytest.raises((InputError, ModelFileError), match=named):
        load(hybrid, rewritten(tmp_path, change))


@pytest.mark.parametrize("size", [0, 7, 500, 30_000])
def test_cut_safetensors(size: int, hybrid: Path, draft_model: Path, tmp_path: Path) -> None:
    folder = rewritten(tmp_path, lambda one: None)
    (folder / "model.safetensors").write_bytes((draft_model / "model.safetensors").read_bytes()[:size])
    with pytest.raises(ModelFileError, match="cannot be read"):
        load(hybrid, folder)


def test_a_pickle_is_never_loaded(hybrid: Path, tmp_path: Path) -> None:
    folder = rewritten(tmp_path, lambda one: None)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"pytorch_model.bin, and pickled weights are never loaded"):
        load(hybrid, folder)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", None, "fc.weight is missing"),
        ("fc.weight", np.zeros((48, 48)), r"fc.weight has shape \(48, 48\)"),
        ("norm.weight", np.zeros(40), r"norm.weight has shape \(40,\)"),
        ("lm_head.weight", np.zeros((99, 48)), "have no place in this model, e.g. lm_head.weight"),
        ("candidate_selector.predecessor_codebook", None, "predecessor_codebook is missing"),
    ],
)
def test_tensors_that_are_not_the_drafts(
    name: str, tensor: np.ndarray | None, message: str, hybrid: Path, tmp_path: Path
) -> None:
    config = draft_config(CONFIG)
    tensors = random_draft(config)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    with pytest.raises(ModelFileError, match=message):
        load(hybrid, write_draft(tmp_path, tensors, config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draft_tokens": 0}, "draft-tokens is 0; allowed: 1 to 31"),
        ({"draft_tokens": 8}, r"draft-tokens is 8; .* was trained for blocks of 7: allowed 1 to 7"),
        ({"draft_tokens": 32}, "draft-tokens is 32; allowed: 1 to 31"),
        ({"draft": "dflash1"}, "draft is 'dflash1'; allowed: none, lookup, dflash2"),
        ({"rejection": "compact"}, "rejection is 'compact'; allowed: dense, sparse"),
        ({"draft": "dflash2+lookup", "fusion_weak": 7, "fusion_strong": 6}, "fusion-weak is 7; allowed: 1 to 6"),
        ({"draft": "dflash2+lookup", "fusion_agree": -1}, "fusion-agree is -1; allowed: 0 to 31"),
        ({"context_kv_graph": True}, r"\(VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH\) with draft 'dflash2' on cpu; allowed"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing(settings: dict[str, Any], message: str, hybrid: Path, draft_model: Path) -> None:
    with pytest.raises(InputError, match=message):
        load(hybrid, draft_model, **settings)


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_a_draft_model_that_nobody_asks_for(draft: str, hybrid: Path, draft_model: Path) -> None:
    with pytest.raises(InputError, match="leave draft-model out"):
        load(hybrid, draft_model, draft=draft)


def test_a_drafter_without_its_model(hybrid: Path) -> None:
    with pytest.raises(InputError, match="give its folder with draft-model"):
        LLM(EngineConfig(model=hybrid, draft="dflash2"))


def test_a_draft_is_no_target(draft_model: Path) -> None:
    with pytest.raises(ModelFileError, match="DFlash2DraftModel"):
        LLM(EngineConfig(model=draft_model))


def test_a_requests_own_width() -> None:
    with pytest.raises(InputError, match=r"draft-tokens of the request is -1; allowed: 0 \(plain decode\) or more"):
        SamplingParams(draft_tokens=-1)


def test_a_request_may_ask_for_no_drafts(hybrid: Path, wide_draft: Path, engine_of: EngineOf) -> None:
    """K = 0 is plain decode beside neighbours that draft."""
    llm = engine_of(hybrid, draft="dflash2", draft_model=wide_draft)
    params = [
        SamplingParams(max_tokens=12, temperature=100.0, seed=1, draft_tokens=width, stop_token_ids=())
        for width in (0, None)
    ]
    plain, drafted = llm.generate_batch([PROMPT, PROMPT], params)
    assert plain.emitted == (1,) * 11
    assert max(drafted.emitted) > 1


def test_fusion_settings_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="matches weak 0, strong 6"):
        FusionSettings(weak=0)
    with pytest.raises(ValueError, match="agree -1"):
        FusionSettings(agree=-1)


def test_a_draft_that_is_not_finite_fails_its_request_alone(
    hybrid: Path, wide_draft: Path, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in one block's rows: that request ends with the reason, its neighbour goes on as if nothing had been."""
    llm = engine_of(hybrid, draft="dflash2", draft_model=wide_draft, max_sequences=2)
    params = SamplingParams(max_tokens=12, temperature=100.0, seed=3, stop_token_ids=())
    alone = llm.generate(PROMPT, params)
    draft = drafting(llm)
    forward, calls = draft._bound_blocks, []

    def poisoned(blocks: int) -> Callable[[], object]:
        run = forward(blocks)

        def spoilt() -> None:
            run()
            calls.append(blocks)
            if blocks == 2:
                draft._outputs.logits[: draft.max_drafts].fill_(float("nan"))

        return spoilt

    monkeypatch.setattr(draft, "_bound_blocks", poisoned)
    failed, other = llm.generate_batch([[70, 71, 72], PROMPT], params)
    assert 2 in calls
    assert failed.finish_reason == "error"
    assert "the draft model's logits are not finite" in str(failed.error)
    assert other.token_ids == alone.token_ids
    assert llm.pool.num_free == llm.pool.num_blocks - 1
