"""Matrices as the draft's checkpoint stores them: E4M3 with a power of two per row."""

from __future__ import annotations

import torch

from engine.linear.nvfp4 import LARGEST_SCALE

_SMALLEST_ROW = 2.0**-14  # a row of zeros has a scale too


@torch.no_grad()
def store(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes float8_e4m3fn [n, k] and scales float32 [n, 1] of ``matrix`` [n, k]."""
    largest = matrix.float().abs().amax(dim=1, keepdim=True).clamp(min=_SMALLEST_ROW)
    scale = torch.exp2(torch.ceil(torch.log2(largest / LARGEST_SCALE)))
    return (matrix.float() / scale).to(torch.float8_e4m3fn), scale


def as_stored(matrix: torch.Tensor) -> torch.Tensor:
    """What `store` keeps of ``matrix``, as numbers; gradients pass straight through. A stored matrix stays as it is."""
    codes, scale = store(matrix)
    return matrix + (codes.float() * scale - matrix).detach()
