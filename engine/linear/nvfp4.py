"""NVFP4 matrices as a checkpoint stores them: rows that can be joined, picked and cut before they are packed.

Names and convention are ModelOpt's: ``x.weight`` uint8 [n, k / 2] (low nibble = even input), ``x.weight_scale`` E4M3
[n, k / 16] and ``x.weight_scale_2``, one float32 that multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch

from engine.ops.functional import PackedNvfp4, pack_nvfp4

BLOCK = 16
LARGEST_CODE = 6.0
LARGEST_SCALE = 448.0

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

VALUES = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))
"""What the 16 codes stand for."""


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Matrix:
    """A [n, k] weight: E2M1(code) * E4M3(scale) * global_scale, a scale for each 16 inputs."""

    codes: torch.Tensor  # uint8 [n, k / 2]
    scales: torch.Tensor  # float8_e4m3fn [n, k / 16]
    global_scale: float

    def rows(self, index: torch.Tensor) -> Nvfp4Matrix:
        """The rows at int64 ``index``, in that order."""
        return Nvfp4Matrix(
            self.codes[index], self.scales.view(torch.uint8)[index].view(self.scales.dtype), self.global_scale
        )

    def columns(self, start: int, end: int) -> Nvfp4Matrix:
        """Inputs ``start`` to ``end``. Raises ``ValueError`` where a cut parts a block of 16."""
        if start % BLOCK or end % BLOCK:
            raise ValueError(f"columns {start}:{end} of an NVFP4 matrix; allowed: multiples of {BLOCK}")
        return Nvfp4Matrix(
            self.codes[:, start // 2 : end // 2].contiguous(),
            self.scales[:, start // BLOCK : end // BLOCK].contiguous(),
            self.global_scale,
        )

    def pack(self) -> PackedNvfp4:
        """Laid out for the kernels."""
        return pack_nvfp4(self.codes, self.scales, self.global_scale, "multiply")

    def dequantize(self) -> torch.Tensor:
        """float32 [n, k]."""
        nibbles = torch.stack((self.codes & 15, self.codes >> 4), dim=-1).flatten(1).long()
        return (
            code_values(self.codes.device)[nibbles]
            * self.scales.float().repeat_interleave(BLOCK, dim=1)
            * self.global_scale
        )


def join(parts: Sequence[Nvfp4Matrix]) -> Nvfp4Matrix:
    """Stack matrices by row. Raises ``ValueError`` where their global scales differ: one product has one."""
    scales = [part.global_scale for part in parts]
    if len(set(scales)) != 1:
        raise ValueError(f"global scales {scales} of parts that are multiplied together; allowed: one for all of them")
    codes = torch.cat([part.codes for part in parts])
    return Nvfp4Matrix(
        codes, torch.cat([part.scales.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn), scales[0]
    )


def global_scale_of(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The scale that brings the largest weight of all to the largest code and block scale; float32, no dimension."""
    largest = torch.stack([weight.detach().abs().amax() for weight in weights]).amax().float()
    return largest / (LARGEST_CODE * LARGEST_SCALE)


def quantize(weight: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nearest codes of ``weight`` [n, k], ties to even, k a multiple of 16.

    Returns uint8 codes [n, k] (0..15, bit 3 is the sign) and float8_e4m3fn block scales [n, k / 16]: each block's
    largest magnitude over 6, rounded to E4M3.
    """
    blocks = weight.float().view(len(weight), -1, BLOCK) / global_scale
    wanted = blocks.abs().amax(dim=-1) / LARGEST_CODE
    scales = wanted.clamp(max=LARGEST_SCALE).to(torch.float8_e4m3fn)
    steps = scales.float().unsqueeze(-1)
    ratio = torch.where(steps > 0, blocks / steps, 0.0)
    codes = torch.bucketize(ratio.abs(), _edges(weight.device)).to(torch.uint8)
    return (codes | (ratio < 0).to(torch.uint8) << 3).flatten(-2), scales


def store(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> Nvfp4Matrix:
    """Codes of `quantize` two to a byte."""
    return Nvfp4Matrix((codes[:, 0::2] | codes[:, 1::2] << 4).contiguous(), scales.contiguous(), float(global_scale))


@cache
def code_values(device: torch.device) -> torch.Tensor:
    """`VALUES` as float32 [16]; made once, so that a CUDA graph can be captured around it."""
    return torch.tensor(VALUES, device=device)


@cache
def _edges(device: torch.device) -> torch.Tensor:
    """Upper ends of each code's interval: middles, and where the tie belongs to the next (even) code just below."""
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(_MAGNITUDES)])
    belongs_above = torch.arange(len(middles)) % 2 == 1
    return torch.where(belongs_above, torch.nextafter(middles, torch.zeros(())), middles).to(device)
