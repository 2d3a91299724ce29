from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InputError, ModelFileError
from engine.llm import LLM
from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import LayerKind, read_hybrid_config
from engine.model.hybrid_shards import HybridShard
from engine.model.hybrid_weights import GdnWeights, load_hybrid
from engine.model.runner import SequenceRows
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from suites.checkpoints.hybrid import CONFIG, fuse_projections, random_tensors, write_checkpoint
from suites.oracles import hybrid

# Rows of up to 80 float32 products through 4 layers, on logits of up to 20; fp64 on the other side.
LOGIT_ERROR = 20 * 80 * 4 * 2.0**-24 * 4
PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("hybrid"), random_tensors())


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(EngineConfig(model=folder, draft="lookup", lookup_min=1, draft_tokens=4))


def run_rows(llm: LLM, sequence: SequenceState, token_ids: list[int], keep: int | None = None) -> torch.Tensor:
    """One forward of ``token_ids`` after the sequence, logits of every row; ``keep`` rows are committed."""
    rows = sequence.reserve(len(token_ids), all_stay=keep is None)
    logits = llm.runner.forward([SequenceRows(token_ids, rows, sequence.block_table, len(token_ids))]).clone()
    sequence.commit(len(token_ids) if keep is None else keep)
    return logits


def test_logits_are_those_of_the_plain_forward(llm: LLM, folder: Path) -> None:
    expected = hybrid.logits(CONFIG, random_tensors(), PROMPT)
    sequence = llm.pools.sequence(PROMPT)
    chunks = [run_rows(llm, sequence, PROMPT[start:end]) for start, end in ((0, 2), (2, 9), (9, 10), (10, 21))]
    sequence.release()
    assert np.abs(torch.cat(chunks).numpy() - expected).max() < LOGIT_ERROR


def test_both_layouts_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, fuse_projections(random_tensors()))
    config = read_hybrid_config(folder)
    with Checkpoint(folder) as sections, Checkpoint(other) as fused:
        one, two = (load_hybrid(stored, HybridShard(config, 1, 0)) for stored in (sections, fused))
    for left, right in zip(one.layers, two.layers, strict=True):
        if isinstance(left.mixer, GdnWeights):
            assert isinstance(right.mixer, GdnWeights)
            assert isinstance(left.mixer.in_proj.weight, torch.Tensor)
            assert isinstance(right.mixer.in_proj.weight, torch.Tensor)
            assert torch.equal(left.mixer.in_proj.weight, right.mixer.in_proj.weight)


@pytest.mark.parametrize("accepted", [1, 2, 4, 5])
def test_committing_some_rows_equals_replaying_them(llm: LLM, accepted: int) -> None:
    """A round of five rows of which the first few stay, against the same tokens from the start; bit for bit."""
    drafts = [40, 41, 42, 43, 44]
    speculated = llm.pools.sequence(PROMPT)
    run_rows(llm, speculated, PROMPT)
    speculated.token_ids.extend(drafts[:accepted])
    run_rows(llm, speculated, drafts, keep=accepted)
    after = run_rows(llm, speculated, [50], keep=0)
    replayed = llm.pools.sequence([*PROMPT, *drafts[:accepted]])
    run_rows(llm, replayed, PROMPT)
    for token in drafts[:accepted]:
        run_rows(llm, replayed, [token])
    assert torch.equal(after, run_rows(llm, replayed, [50], keep=0))
    speculated.release()
    replayed.release()


def test_lookup_gives_the_same_greedy_tokens(llm: LLM, folder: Path) -> None:
    plain = LLM(EngineConfig(model=folder))
    params = SamplingParams(max_tokens=60, stop_token_ids=())
    looked_up = llm.generate(PROMPT, params)
    assert looked_up.token_ids == plain.generate(PROMPT, params).token_ids
    assert looked_up.rounds < 59, "nothing was accepted: the test has no power"
    assert looked_up.acceptance_histogram[0] > 0, "nothing was rejected: the test has no power"


def test_batches_crowding_and_prefixes_change_no_token(llm: LLM, folder: Path) -> None:
    params = SamplingParams(max_tokens=40, stop_token_ids=())
    prompts = [PROMPT, [*PROMPT[:18], 80, 81], [70, 71, 72] * 9]
    alone = [llm.generate(prompt, params).token_ids for prompt in prompts]
    crowded = LLM(
        EngineConfig(
            model=folder,
            draft="lookup",
            lookup_min=1,
            draft_tokens=4,
            kv_cache_tokens=112,
            block_size=8,
            prefill_chunk=12,
            prefix_reuse=True,
        )
    )
    for _ in range(2):
        together = crowded.generate_batch(prompts, params)
        assert [result.token_ids for result in together] == alone


def test_a_known_prefix_is_adopted_with_its_state(folder: Path) -> None:
    reusing = LLM(EngineConfig(model=folder, block_size=4, prefix_reuse=True))
    params = SamplingParams(max_tokens=5, stop_token_ids=())
    first = reusing.generate(PROMPT, params)
    sequence = reusing.pools.sequence(PROMPT)
    assert sequence.adopt_prefix() == 20
    sequence.release()
    assert reusing.generate(PROMPT, params).token_ids == first.token_ids


def test_text_goes_in_and_comes_out(llm: LLM) -> None:
    assert llm.chat_prompt("hi") == [3 + ord("h") - 0x20, 3 + ord("i") - 0x20]
    result = llm.generate("ab cd", SamplingParams(max_tokens=6, temperature=1.0, seed=1))
    assert result.text == llm.tokenizer.decode(result.token_ids)


def test_layer_kinds(folder: Path) -> None:
    config = read_hybrid_config(folder)
    assert config.layers == (LayerKind.GDN, LayerKind.GDN, LayerKind.GDN, LayerKind.ATTENTION)
    assert (config.attention.rotary_dim, config.gdn.conv_dim) == (8, 136)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "architectures .'DFlash2DraftModel'.; allowed: one of Qwen3Next"),
        ({"architectures": None}, "architectures None; allowed"),
        ({"num_experts": 64}, "num_experts 64; allowed: a dense MLP"),
        ({"rope_scaling": {"type": "yarn"}}, "RoPE scaling .*yarn.*; allowed: none"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'; allowed: none"),
        ({"hidden_size": "large"}, "hidden_size is 'large'; allowed: a whole number from 1 to"),
        ({"head_dim": 2**63}, "head_dim is 9223372036854775808; allowed: a whole number from 1 to"),
        ({"partial_rotary_factor": 1e308}, "inf of 32 dimensions turn; allowed: an even number"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has no full_attention; allowed: at least one"),
        (
            {"layer_types": None, "full_attention_interval": 5},
            "full_attention_interval 5 over 4 layers; allowed: 1 to 4",
        ),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads 5 over linear_num_key_heads 2; allowed: a multiple"),
        ({"partial_rotary_factor": 0.1}, "3.2.* of 32 dimensions turn; allowed: an even number"),
        ({"layer_types": ["full_attention"]}, "layer_types .*; allowed: 4 of linear_attention, full_attention"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; allowed: 'silu'"),
        ({"text_config": 5}, "text_config is 5; allowed: a JSON object"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; allowed: a JSON object"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*; allowed: a number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; allowed: true or false"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; allowed: 1 to 1024"),
    ],
)
def test_configs_that_are_not_run_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelFileError, match=message):
        read_hybrid_config(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"no config.json; give a Hugging Face model folder .* target, a .gguf file"
    ):
        LLM(EngineConfig(model=tmp_path))
    for text in ("[", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelFileError, match="not JSON"):
            read_hybrid_config(tmp_path)
    with pytest.raises(ModelFileError, match=r"no config\.json; give"):
        read_hybrid_config(tmp_path / "config.json")
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be read: Is a directory"):
        read_hybrid_config(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 100, 20_000])
def test_damaged_safetensors_are_refused(folder: Path, tmp_path: Path, size: int) -> None:
    write_checkpoint(tmp_path, random_tensors())
    content = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:size])
    with pytest.raises(ModelFileError, match="cannot be read as safetensors"):
        LLM(EngineConfig(model=tmp_path))


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_tensors())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"found pytorch_model.bin, and pickled weights are never loaded"):
        LLM(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("lm_head.weight", None, "tensor lm_head.weight is missing"),
        ("lm_head.weight", np.zeros((3, 48)), r"lm_head.weight has shape \(3, 48\); the config asks for \(99, 48\)"),
        ("model.layers.0.bias", np.zeros(3), "1 tensors have no place in this model, e.g. model.layers.0.bias"),
        ("model.norm.weight", np.full(48, np.nan), "model.norm.weight holds NaN or infinity; fetch or export it again"),
    ],
)
def test_tensors_must_be_exactly_the_models(tmp_path: Path, name: str, tensor: np.ndarray | None, message: str) -> None:
    tensors = random_tensors()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    write_checkpoint(tmp_path, tensors)
    with pytest.raises(ModelFileError, match=message):
        LLM(EngineConfig(model=tmp_path))


def test_shards_are_read_through_their_index(folder: Path, tmp_path: Path) -> None:
    tensors = random_tensors()
    write_checkpoint(tmp_path, tensors)
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[:20], names[20:])):
        file = f"model-{number}.safetensors"
        write_checkpoint(tmp_path / file, {name: tensors[name] for name in part})
        (tmp_path / file / "model.safetensors").rename(tmp_path / f"shard-{file}")
        weight_map |= dict.fromkeys(part, f"shard-{file}")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with Checkpoint(tmp_path) as checkpoint:
        load_hybrid(checkpoint, HybridShard(read_hybrid_config(folder), 1, 0))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../elsewhere"}}))
    with pytest.raises(ModelFileError, match=r"names '../elsewhere', which is no file"):
        Checkpoint(tmp_path)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_tensors(), {**CONFIG, "vocab_size": 80})
    with pytest.raises(ModelFileError, match="the tokenizer has 94 ids, the model 80; they do not belong together"):
        LLM(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "no such file; the model folder is incomplete"),
        ("tokenizer.json", "{", "not JSON"),
        ("tokenizer.json", '{"decoder": {"type": "WordPiece"}}', "decoder .*WordPiece.*; allowed: ByteLevel"),
        ("tokenizer.json", '{"decoder": {"type": "ByteLevel"}}', "not a tokenizer"),
        ("config.json", json.dumps({**CONFIG, "eos_token_id": 97}), "end tokens .*97.*; allowed: at least one of"),
        (
            "config.json",
            json.dumps({**CONFIG, "eos_token_id": "x"}),
            "eos_token_id is 'x'; allowed: a token id or a list",
        ),
        ("tokenizer_config.json", '{"eos_token": 5}', "eos_token is 5; allowed: the text of a token"),
    ],
)
def test_damaged_tokenizers_are_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    write_checkpoint(tmp_path, random_tensors())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelFileError, match=message):
        LLM(EngineConfig(model=tmp_path))


def test_a_request_that_cannot_run_fails_alone(folder: Path) -> None:
    llm = LLM(EngineConfig(model=folder, kv_cache_tokens=64))
    params = SamplingParams(max_tokens=5, stop_token_ids=())
    alone = llm.generate(PROMPT, params)
    broken: dict[str, Any] = {
        "needs 206 KV slots (prompt 200, reply 5, one round); the cache has 64": [5] * 200,
        "the prompt has 300 tokens; allowed: up to 255": [5] * 300,
        "token id 1000 in the prompt; allowed: 0 to 98": [1000],
        "the prompt has no tokens; allowed: at least one": [],
        "the prompt holds something other than token ids": ["x"],
    }
    first, *failed, last = llm.generate_batch([PROMPT, *broken.values(), PROMPT], params)
    assert first.token_ids == last.token_ids == alone.token_ids
    for reason, result in zip(broken, failed, strict=True):
        assert (result.finish_reason, result.token_ids) == ("error", ())
        assert result.error is not None
        assert reason in result.error
        with pytest.raises(InputError, match=re.escape(reason)):
            llm.generate(broken[reason], params)
    with pytest.raises(InputError, match="1 params for 2 prompts; allowed: one for all, or one each"):
        llm.generate_batch([PROMPT, PROMPT], [params])
    assert llm.pool.num_free == llm.pool.num_blocks - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_without_usable_logits_fails_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    forward = llm.runner.forward

    def poisoned(batch: list[SequenceRows], *, prefill: bool = False) -> torch.Tensor:
        logits = forward(batch, prefill=prefill)
        first = 0
        for rows in batch:
            if rows.num_logits and 77 in rows.token_ids[-1:]:
                logits[first + rows.num_logits - 1, 3] = float("nan")
            first += rows.num_logits
        return logits

    params = SamplingParams(max_tokens=9, temperature=temperature, seed=4, stop_token_ids=())
    alone = llm.generate(PROMPT, params)
    monkeypatch.setattr(llm.runner, "forward", poisoned)
    failed, other = llm.generate_batch([[5, 6, 77], PROMPT], params)
    assert failed.finish_reason == "error"
    assert failed.error is not None
    assert "position 3" in failed.error
    assert failed.token_ids == ()
    assert other.token_ids == alone.token_ids
    assert llm.pool.num_free == llm.pool.num_blocks - 1
