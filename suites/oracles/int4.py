"""NVFP4 and AWQ weights to fp64, from the definitions of their formats."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from suites.oracles.arrays import F64, U8, Floats
from suites.oracles.fp8 import E4M3

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NVFP4_BLOCK = 16
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def e2m1(codes: U8) -> F64:
    """Values of 4-bit codes s|ee|m (0..15)."""
    table = np.array([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)])
    return table[codes]


def nvfp4(packed: U8, scales: U8, global_scale: float, convention: Literal["multiply", "divide"] = "multiply") -> F64:
    """Weights ``[N, K]`` from codes ``[N, K/2]`` (low nibble = even k) and E4M3 block scales ``[N, K/16]``.

    ``convention``: whether the checkpoint's global scale multiplies (ModelOpt) or divides (compressed-tensors).
    """
    codes = np.stack([packed & 0x0F, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    block_scales = np.repeat(E4M3.table()[scales], NVFP4_BLOCK, axis=-1)
    factor = global_scale if convention == "multiply" else 1.0 / global_scale
    out: F64 = e2m1(codes) * block_scales * factor
    return out


def awq_nibbles(words: npt.NDArray[np.int32]) -> F64:
    """``[R, N/8]`` int32 -> ``[R, N]``: nibble j of a word is column 8c + order[j], order = 0 2 4 6 1 3 5 7."""
    unsigned = words.view(np.uint32)
    out = np.zeros((words.shape[0], words.shape[1], 8))
    for nibble, column in enumerate(AWQ_ORDER):
        out[:, :, column] = (unsigned >> np.uint32(4 * nibble)) & np.uint32(0xF)
    return out.reshape(words.shape[0], -1)


def awq(qweight: npt.NDArray[np.int32], qzeros: npt.NDArray[np.int32], scales: Floats) -> F64:
    """Weights ``[N, K]`` (transposed to our order) from ``[K, N/8]``, ``[K/g, N/8]`` and ``[K/g, N]``: (q - z) * s."""
    group = qweight.shape[0] // qzeros.shape[0]
    zeros = np.repeat(awq_nibbles(qzeros), group, axis=0)
    factors = np.repeat(scales.astype(np.float64), group, axis=0)
    out: F64 = ((awq_nibbles(qweight) - zeros) * factors).T
    return out


def misread_scales(scales: F64, alignment: int, pack: int = 32) -> F64:
    """What a kernel sees of ``scales [K/g, N]`` when N is padded to ``alignment`` only: the real rule is ``pack``.

    Scales are written in packs of ``pack`` columns, ceil(N / pack) packs a group, but read with the padded N as the row
    length. Where that is a multiple of ``pack`` both agree; otherwise every group after the first is read from a wrong
    place. Reads past the end wrap. Returns ``[K/g, N]`` of the logical width.
    """
    groups, n = scales.shape
    row = -(-n // alignment) * alignment
    written = np.zeros((groups, -(-row // pack) * pack))
    written[:, :n] = scales
    flat = written.reshape(-1)
    at = np.arange(groups)[:, None] * row + np.arange(n)[None]
    out: F64 = flat[at % flat.size]
    return out
