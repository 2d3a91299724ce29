"""Steps between ranks, bound to buffers that are allocated once, so that a CUDA graph can hold them.

A collective library may add in any order, and another one at another size. Here it only moves bytes; what is added is
added on every rank in rank order, so that all ranks have the same bits and a reference can have them too.
"""

from __future__ import annotations

import torch

from engine.ops.bound import Step
from engine.parallel.group import Group


def ordered_sum(parts: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` f32 [...] = ((parts[0] + parts[1]) + parts[2]) + ..., in float32. ``parts`` [size, ...], f32 or f16."""
    out.copy_(parts[0])
    for part in parts[1:]:
        out += part


class Collectives:
    """The steps of one decoder. Buffers are made for the largest forward and shared by all steps: they run in turn."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._buffers: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def add_sum(self, partial: torch.Tensor, hidden: torch.Tensor) -> Step:
        """``hidden`` [M, H] += the ranks' ``partial`` [M, H], summed in rank order in float32 and rounded once."""
        parts = self.buffer("parts", (self.group.size, *partial.shape), partial.dtype, partial.device)
        total = self.buffer("total", tuple(partial.shape), torch.float32, partial.device)

        def run() -> None:
            self.group.all_gather(parts, partial)
            ordered_sum(parts, total)
            total.add_(hidden)
            hidden.copy_(total)

        return run

    def sum_into(self, partial: torch.Tensor, out: torch.Tensor) -> Step:
        """``out`` [M, H] = the ranks' ``partial`` [M, H], summed in rank order in float32 and rounded once."""
        parts = self.buffer("parts", (self.group.size, *partial.shape), partial.dtype, partial.device)
        total = self.buffer("total", tuple(partial.shape), torch.float32, partial.device)

        def run() -> None:
            self.group.all_gather(parts, partial)
            ordered_sum(parts, total)
            out.copy_(total)

        return run

    def gather_columns(self, local: torch.Tensor, out: torch.Tensor) -> Step:
        """``out`` [M, V] = the ranks' ``local`` [M, ceil(V / size)] side by side, cut to V."""
        rows, width = local.shape
        total = out.shape[1]
        parts = self.buffer("columns", (self.group.size, rows, width), local.dtype, local.device)

        def run() -> None:
            self.group.all_gather(parts, local)
            for rank in range(self.group.size):
                start = rank * width
                stop = min(start + width, total)
                if start < stop:
                    out[:, start:stop].copy_(parts[rank, :, : stop - start])

        return run

    def buffer(self, use: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A contiguous view of the memory kept for ``use``, which grows to the largest shape ever bound."""
        count = torch.Size(shape).numel()
        kept = self._buffers.get((use, dtype, device))
        if kept is None or kept.numel() < count:
            # Steps that are bound already keep the smaller memory alive; they stay right.
            kept = torch.zeros(count, dtype=dtype, device=device)
            self._buffers[use, dtype, device] = kept
        return kept[:count].view(shape)
