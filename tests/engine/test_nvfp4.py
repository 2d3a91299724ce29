from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelFileError
from engine.linear import nvfp4
from engine.llm import LLM
from engine.request import SamplingParams
from suites.checkpoints.hybrid import CONFIG, random_tensors, write_checkpoint
from suites.checkpoints.nvfp4 import quantise_file, stored
from suites.oracles import hybrid

from .test_hybrid import PROMPT, run_rows

# Widths that NVFP4's k-tile of 32 divides.
SIZES = {"hidden_size": 64, "intermediate_size": 96, "linear_key_head_dim": 16, "linear_value_head_dim": 16}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.24, 0),
        (0.25, 0),
        (0.26, 1),
        (0.75, 2),
        (1.25, 2),
        (1.75, 4),
        (2.5, 4),
        (3.5, 6),
        (5.0, 6),
        (5.1, 7),
        (-3.5, 14),
    ],
)
def test_codes_are_the_nearest_and_ties_go_to_the_even_one(value: float, code: int) -> None:
    row = torch.zeros(1, 16)
    row[0, 0], row[0, 1] = 6.0, value
    codes, scales = nvfp4.quantize(row, torch.tensor(1.0))
    assert float(scales.float()) == 1.0
    assert codes[0, :2].tolist() == [7, code]


def test_a_matrix_comes_back_within_half_a_step() -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    (matrix,) = stored([weight])
    error = (matrix.dequantize() - weight).view(40, -1, 16).abs()
    # The widest step is 2 (between 4 and 6), so a code is off by 1; the block's scale is off by 1/16 of 6 codes.
    step = matrix.scales.float().unsqueeze(-1) * matrix.global_scale
    assert bool((error <= (1 + 6 / 16) * step).all())
    assert torch.equal(matrix.pack().dequantize(), matrix.dequantize())
    assert torch.equal(matrix.rows(torch.tensor([3, 1])).dequantize(), matrix.dequantize()[[3, 1]])
    assert torch.equal(matrix.columns(16, 48).dequantize(), matrix.dequantize()[:, 16:48])
    with pytest.raises(ValueError, match="columns 8:48 of an NVFP4 matrix; allowed: multiples of 16"):
        matrix.columns(8, 48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hybrid checkpoint of the other tests, wider, with every projection in NVFP4."""
    target = tmp_path_factory.mktemp("nvfp4")
    tensors = random_tensors(hidden=64, inner=96, value_dim=16)
    write_checkpoint(target, tensors, {**CONFIG, **SIZES})
    return quantise_file(target)


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def dequantised(folder: Path) -> dict[str, np.ndarray]:
    tensors = load_file(folder / "model.safetensors")
    plain: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if f"{name}_scale" in tensors:
            matrix = nvfp4.Nvfp4Matrix(tensor, tensors[f"{name}_scale"], float(tensors[f"{name}_scale_2"]))
            plain[name] = matrix.dequantize().double().numpy()
        elif not name.endswith(("_scale", "_scale_2")):
            plain[name] = tensor.double().numpy()
    return plain


def test_logits_are_those_of_the_dequantised_weights(folder: Path) -> None:
    llm = LLM(EngineConfig(model=folder, draft="lookup", draft_tokens=4))
    expected = hybrid.logits(config_of(folder), dequantised(folder), PROMPT)
    sequence = llm.pools.sequence(PROMPT)
    seen = run_rows(llm, sequence, PROMPT).numpy()
    sequence.release()
    # Activations meet packed weights in fixed point, off by at most 2^-15 of the largest of 32 (see `linear`). What
    # such an error comes to after four layers, the plain forward says itself: its weights are moved by as much.
    rng = np.random.default_rng(0)
    moved = {
        name: tensor * (1 + 2.0**-15 * rng.uniform(-1, 1, tensor.shape)) if "proj" in name else tensor
        for name, tensor in dequantised(folder).items()
    }
    allowed = np.linalg.norm(hybrid.logits(config_of(folder), moved, PROMPT) - expected)
    assert np.linalg.norm(seen - expected) < 8 * allowed
    assert llm.generate(PROMPT, SamplingParams(max_tokens=5)).token_ids


@pytest.mark.parametrize("ratio", [1.5, 2.0])
def test_parts_with_global_scales_of_their_own(folder: Path, tmp_path: Path, ratio: float) -> None:
    """Twice the scale folds into the block scales without a rounding; one and a half times cannot."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight_scale_2"
    save_file({**tensors, name: tensors[name] * ratio}, tmp_path / "model.safetensors")
    if ratio == 2.0:
        assert LLM(EngineConfig(model=tmp_path)).generate(PROMPT, SamplingParams(max_tokens=1)).token_ids
        return
    with pytest.raises(ModelFileError, match=r"global scales .* of parts that are multiplied together; allowed: equal"):
        LLM(EngineConfig(model=tmp_path))


@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_2"])
def test_scales_that_are_no_number_are_refused(folder: Path, tmp_path: Path, scale: str) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.0.mlp.up_proj.{scale}"
    broken = torch.full(tensors[name].shape, torch.nan).to(tensors[name].dtype)
    save_file({**tensors, name: broken}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"{scale} holds NaN or infinity"):
        LLM(EngineConfig(model=tmp_path))
    if scale == "weight_scale_2":
        save_file({**tensors, name: torch.tensor(0.0)}, tmp_path / "model.safetensors")
        with pytest.raises(ModelFileError, match=f"{scale} is 0.0; allowed: a number above 0"):
            LLM(EngineConfig(model=tmp_path))


def test_a_product_is_quantised_as_a_whole(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(json.loads((folder / name).read_text())))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    del tensors[f"{name}_scale"], tensors[f"{name}_scale_2"]
    save_file({**tensors, name: torch.zeros(96, 64)}, tmp_path / "model.safetensors")
    mixed = "mlp gate up: some parts of this fused projection are NVFP4 and some are not"
    with pytest.raises(ModelFileError, match=mixed):
        LLM(EngineConfig(model=tmp_path))
