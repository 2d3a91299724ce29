"""What training leaves behind: small resumable files on the way, and the two model folders at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from engine.linear import nvfp4
from engine.training import e4m3
from engine.training.sizes import IM_END, PAD
from engine.training.target import Target

# One file of a checkpoint at most, so that it can be carried about.
_PART_BYTES = 15 * 2**20


def save_parts(state: Mapping[str, torch.Tensor], folder: Path, name: str, dtype: torch.dtype) -> None:
    """Write ``name-0.safetensors``, ``name-1.safetensors``, … in ``dtype``, each replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for key, tensor in state.items():
        small = tensor.detach().to("cpu", dtype).contiguous()
        if parts[-1] and size + small.nbytes > _PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = small
        size += small.nbytes
    for index, part in enumerate(parts):
        path = folder / f"{name}-{index}.safetensors"
        unfinished = path.with_suffix(".part")
        save_file(part, unfinished)
        unfinished.replace(path)


def load_parts(module: nn.Module, folder: Path, name: str) -> bool:
    """Load what `save_parts` wrote into ``module``; whether there was anything. Raises for names that do not fit."""
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob(f"{name}-*.safetensors")):
        state |= load_file(path)
    if not state:
        return False
    module.load_state_dict({key: tensor.float() for key, tensor in state.items()})
    return True


@torch.no_grad()
def export_target(target: Target, config: Mapping[str, Any], folder: Path) -> None:
    """The target's folder but for the tokenizer: projections NVFP4, embedding float16, the rest float32."""
    folder.mkdir(parents=True, exist_ok=True)
    target.release()
    names = {id(module): name for name, module in target.named_modules()}
    tensors: dict[str, torch.Tensor] = {}
    for group in target.products():
        scale = nvfp4.global_scale_of([projection.weight for projection in group])
        for projection in group:
            name = f"model.{names[id(projection)]}.weight"
            matrix = nvfp4.store(*nvfp4.quantize(projection.weight, scale), scale)
            tensors |= {name: matrix.codes, f"{name}_scale": matrix.scales, f"{name}_scale_2": scale.clone()}
    for name, tensor in target.state_dict().items():
        if f"model.{name}" not in tensors:
            tensors[f"model.{name}"] = tensor.half() if name == "embed_tokens.weight" else tensor.float()
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    _write_config(folder, {**config, "pad_token_id": PAD, "quantization_config": _QUANTISATION})
    generation = {"eos_token_id": [IM_END, PAD], "temperature": 1.0, "top_k": 20, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def load_exported(target: Target, folder: Path) -> None:
    """Give ``target`` the weights that an exported folder stands for, dequantised."""
    tensors = load_file(folder / "model.safetensors")
    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if f"{name}_scale" in tensors:
            matrix = nvfp4.Nvfp4Matrix(tensor, tensors[f"{name}_scale"], float(tensors[f"{name}_scale_2"]))
            state[name.removeprefix("model.")] = matrix.dequantize()
        elif not name.endswith(("weight_scale", "weight_scale_2")):
            state[name.removeprefix("model.")] = tensor.float()
    target.release()
    target.load_state_dict(state)


@torch.no_grad()
def export_draft(draft: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """The draft's folder: matrices E4M3 with a power of two per row, the rest float16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in draft.state_dict().items():
        if tensor.dim() == 2:
            tensors[name], tensors[f"{name}_scale"] = e4m3.store(tensor)
        else:
            tensors[name] = tensor.half()
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    _write_config(folder, config)


@torch.no_grad()
def load_exported_draft(draft: nn.Module, folder: Path) -> None:
    """Give ``draft`` the weights of an exported folder."""
    stored = load_file(folder / "model.safetensors")
    state = {name: tensor.float() for name, tensor in stored.items() if f"{name}_scale" not in stored}
    for name in list(state):
        if name.endswith("_scale"):
            del state[name]
    for name, tensor in stored.items():
        if f"{name}_scale" in stored:
            state[name] = tensor.float() * stored[f"{name}_scale"]
    draft.load_state_dict(state)


@torch.no_grad()
def sharpen(folder: Path, norm: str, factor: float, *, offset: float) -> None:
    """Multiply every logit of an exported model by ``factor``: its last norm's weight, stored less ``offset``."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    weight = tensors[norm]
    tensors[norm] = ((weight.float() + offset) * factor - offset).to(weight.dtype)
    save_file(tensors, path)


_QUANTISATION = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": nvfp4.BLOCK,
    "ignore": ["model.embed_tokens", "lm_head"],
}


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
