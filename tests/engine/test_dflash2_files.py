from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ModelFileError
from engine.model.checkpoint import Checkpoint
from engine.model.dflash2_config import DFlash2Config, TargetSizes, read_dflash2_config
from engine.model.dflash2_weights import DFlash2Weights, load_dflash2
from engine.model.hybrid_config import read_hybrid_config
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG

DRAFT = draft_config(CONFIG)
TARGET = TargetSizes(vocab_size=99, hidden_size=48, num_layers=4)


def read(folder: Path, config: dict[str, Any]) -> DFlash2Config:
    (folder / "config.json").write_text(json.dumps(config))
    return read_dflash2_config(folder)


def load(folder: Path) -> DFlash2Weights:
    with Checkpoint(folder) as checkpoint:
        return load_dflash2(checkpoint, read_dflash2_config(folder))


def test_a_config_is_read(tmp_path: Path) -> None:
    config = read(tmp_path, DRAFT)
    config.check_target(TARGET)
    assert (config.max_drafts, config.conv_groups, config.windows) == (7, 3, (24, None))
    assert (config.target_layer_ids, config.rope_theta, config.rope_interleaved) == ((0, 2), 5000.0, False)
    assert (config.embedding_scale, config.output_multiplier, config.softcap) == (1.0, 1.0, None)


def test_layers_slide_by_default_where_a_window_is_given(tmp_path: Path) -> None:
    without = {key: value for key, value in DRAFT.items() if key != "layer_types"}
    assert read(tmp_path, without).windows == (24, 24)
    del without["sliding_window"]
    assert read(tmp_path, without).windows == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "architectures .'DFlashDraftModel'.; allowed: one of DFlash2DraftM"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "drafts with DFlash2 checkpoints alone"),
        ({"is_causal": True}, "is_causal is True; allowed: false"),
        ({"hidden_size": 50}, "hidden_size 50 over conv_group_size 16; allowed: a multiple"),
        ({"head_dim": 15}, "head_dim 15 over a pair of 2; allowed: a multiple"),
        ({"num_attention_heads": 3}, "num_attention_heads 3 over num_key_value_heads 2; allowed: a multiple"),
        ({"layer_types": ["sliding_attention"]}, "layer_types .*; allowed: 2 of sliding_attention, full_attention"),
        ({"sliding_window": None}, "a sliding_attention layer without sliding_window; give the window"),
        ({"rope_is_neox_style": 1}, "rope_is_neox_style is 1; allowed: true or false"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE scaling 'yarn'; allowed: none"),
        ({"dflash_config": None}, "dflash_config is None; allowed: an object of block_size, "),
        ({"dflash_config": {"block_size": 8}}, r"dflash_config lacks \['mask_token_id', .*and has \[\]; allowed"),
    ],
)
def test_configs_that_are_not_run_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(tmp_path, {**DRAFT, **change})


@pytest.mark.parametrize(
    ("special", "message"),
    [
        ({"block_size": 1}, "block_size is 1; allowed: 2 to 32"),
        ({"block_size": 33}, "block_size is 33; allowed: 2 to 32"),
        ({"mask_token_id": 99}, "mask_token_id is 99; allowed: 0 to 98"),
        ({"target_layer_ids": []}, "target_layer_ids .*; allowed: layer numbers, ascending, one at least"),
        ({"target_layer_ids": [2, 0]}, "target_layer_ids .*; allowed: layer numbers, ascending"),
        ({"conv_kernel_size": 9}, "conv_kernel_size is 9; allowed: 1 to 8"),
        ({"selector_top_k": 65}, "selector_top_k is 65; allowed: 1 to 64"),
        ({"selector_rank": 0}, "selector_rank is 0; allowed: a whole number from 1 to"),
        ({"final_logit_softcapping": -1}, "final_logit_softcapping is -1; allowed: a number above 0"),
        ({"speed": 11}, r"dflash_config lacks \[\] and has \['speed'\]; allowed"),
    ],
)
def test_special_keys_that_mean_nothing_are_refused(tmp_path: Path, special: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(tmp_path, draft_config(CONFIG, **special))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (TargetSizes(98, 48, 4), "vocab_size is 99, the target's is 98; they do not belong together"),
        (TargetSizes(99, 64, 4), "hidden_size is 48, the target's is 64; they do not belong together"),
        (TargetSizes(99, 48, 5), "num_target_layers is 4, the target's is 5; they do not belong together"),
    ],
)
def test_another_models_draft_is_refused(tmp_path: Path, target: TargetSizes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read(tmp_path, DRAFT).check_target(target)


def test_a_tap_that_the_target_lacks_is_refused(tmp_path: Path) -> None:
    config = draft_config(CONFIG, target_layer_ids=[0, 4, 9])
    with pytest.raises(ModelFileError, match=r"target_layer_ids name layers \[4, 9\]; the target has 0 to 3"):
        read(tmp_path, config).check_target(TARGET)


def test_a_draft_model_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DRAFT))
    with pytest.raises(ModelFileError, match=r"architectures .'DFlash2DraftModel'.; allowed: one of Qwen3Next"):
        read_hybrid_config(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = random_draft(DRAFT)
    weights = load(write_draft(tmp_path, tensors, DRAFT, dtype))
    layer = weights.layers[1]
    assert layer.qkv.shape == (128, 48)
    assert layer.mlp_conv.base.shape == (2, 2, 48)
    expected = torch.from_numpy(tensors["layers.1.self_attn.k_proj.weight"]).to(dtype)
    kept = torch.float16 if dtype == torch.float16 else torch.float32
    assert layer.qkv.dtype == layer.down.dtype == weights.successors.dtype == kept
    assert layer.k_norm.dtype == torch.float32
    assert torch.equal(layer.qkv[64:96].float(), expected.float())


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.weight", None, "tensor fc.weight is missing"),
        ("fc.weight", np.zeros((48, 48)), r"fc.weight has shape \(48, 48\); the config asks for \(48, 96\)"),
        ("layers.2.bias", np.zeros(3), "1 tensors have no place in this model, e.g. layers.2.bias"),
        ("fc.weight", np.full((48, 96), np.nan), "fc.weight holds NaN or infinity; fetch or export it again"),
    ],
)
def test_tensors_must_be_exactly_the_models(tmp_path: Path, name: str, tensor: np.ndarray | None, message: str) -> None:
    tensors = random_draft(DRAFT)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    with pytest.raises(ModelFileError, match=message):
        load(write_draft(tmp_path, tensors, DRAFT))


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_damaged_safetensors_are_refused(tmp_path: Path, size: int) -> None:
    path = write_draft(tmp_path, random_draft(DRAFT), DRAFT) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match="cannot be read as safetensors"):
        load(tmp_path)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    write_draft(tmp_path, random_draft(DRAFT), DRAFT)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"found pytorch_model.bin, and pickled weights are never loaded"):
        load(tmp_path)
