"""Parts of a fused NVFP4 projection that were quantised apart: one global scale for all of them, exactly, or a refusal.

A product has one global scale. Taking the largest of several would multiply the weights of the other parts by the ratio
of the two, silently. A ratio that is a power of two can be moved into a part's block scales, as long as each stays an
E4M3 number; any other ratio would round, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine.errors import InputError
from engine.linear.nvfp4 import LARGEST_SCALE, Nvfp4Matrix


def one_global_scale(parts: Sequence[Nvfp4Matrix]) -> list[Nvfp4Matrix]:
    """The same weights with one global scale, bit for bit.

    Raises ``InputError`` where no scale of the parts can stand for all of them exactly.
    """
    scales = sorted({part.global_scale for part in parts}, reverse=True)
    for common in scales:
        folded = [_refolded(part, common) for part in parts]
        if all(part is not None for part in folded):
            return [part for part in folded if part is not None]
    raise InputError(
        f"global scales {[part.global_scale for part in parts]} of parts that are multiplied together; allowed: equal "
        "ones, or powers of two apart with block scales that stay E4M3 numbers; otherwise quantise the parts together"
    )


def _refolded(part: Nvfp4Matrix, common: float) -> Nvfp4Matrix | None:
    """``part`` over the global scale ``common``; None where that is not exact."""
    if part.global_scale == common:
        return part
    ratio = part.global_scale / common
    if math.frexp(ratio)[0] != 0.5 or ratio * common != part.global_scale:
        return None
    wanted = part.scales.double() * ratio
    folded = wanted.clamp(max=LARGEST_SCALE).to(part.scales.dtype)
    return Nvfp4Matrix(part.codes, folded, common) if torch.equal(folded.double(), wanted) else None
