"""Turns the projections of a hybrid checkpoint into NVFP4, parts of one product with one global scale."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.linear import nvfp4


def stored(weights: list[torch.Tensor]) -> list[nvfp4.Nvfp4Matrix]:
    """Parts of one product: quantised with one global scale."""
    scale = nvfp4.global_scale_of(weights)
    return [nvfp4.store(*nvfp4.quantize(weight, scale), scale) for weight in weights]


def quantise_file(folder: Path) -> Path:
    """Rewrite the checkpoint in ``folder``; returns it."""
    tensors = load_file(folder / "model.safetensors")
    groups: dict[str, list[str]] = {}
    for name in tensors:
        if name.endswith("proj.weight") or "in_proj" in name:
            part = name.rsplit(".", 2)[1]
            fused = "in" if part.startswith("in_proj") else {"k": "q", "v": "q", "up": "gate"}.get(part[:-5], part[:-5])
            groups.setdefault(f"{name.rsplit('.', 2)[0]}.{fused}", []).append(name)
    for names in groups.values():
        for name, matrix in zip(names, stored([tensors.pop(name) for name in names]), strict=True):
            tensors[name], tensors[f"{name}_scale"] = matrix.codes, matrix.scales
            tensors[f"{name}_scale_2"] = torch.tensor(matrix.global_scale)
    save_file(tensors, folder / "model.safetensors")
    return folder
