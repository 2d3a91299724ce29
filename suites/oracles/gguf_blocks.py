"""Dequantisation of raw GGUF blocks, byte for byte as the format defines them. Every result is exact in fp64."""

from __future__ import annotations

import numpy as np

from suites.oracles.arrays import F64, U8

Q4_1_BYTES = 20
Q8_0_BYTES = 34
BLOCK = 32


def _half(two_bytes: U8) -> F64:
    """Little-endian fp16 in the last axis of two bytes -> fp64 (without that axis)."""
    return np.ascontiguousarray(two_bytes).view("<f2")[..., 0].astype(np.float64)


def q4_1_parts(blocks: U8) -> tuple[F64, F64, F64]:
    """Codes ``[N, K/32, 32]`` (0..15), scales and minima ``[N, K/32]`` of raw blocks ``[N, K/32, 20]``.

    A block is fp16 d, fp16 m, 16 bytes; the low nibble of byte j is element j, its high nibble element j + 16.
    """
    if blocks.shape[-1] != Q4_1_BYTES:
        raise ValueError(f"a Q4_1 block has {Q4_1_BYTES} bytes, got {blocks.shape[-1]}")
    nibbles = blocks[..., 4:]
    codes = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=-1).astype(np.float64)
    return codes, _half(blocks[..., 0:2]), _half(blocks[..., 2:4])


def q4_1(blocks: U8) -> F64:
    """Weights ``[N, K]``, w = d * code + m."""
    codes, scales, minima = q4_1_parts(blocks)
    weights: F64 = scales[..., None] * codes + minima[..., None]
    return weights.reshape(blocks.shape[0], -1)


def q4_1_magnitude(blocks: U8) -> F64:
    """``|d| * code + |m|`` as ``[N, K]``: what a rounding error of d * code + m scales with, however evaluated."""
    codes, scales, minima = q4_1_parts(blocks)
    magnitude: F64 = np.abs(scales)[..., None] * codes + np.abs(minima)[..., None]
    return magnitude.reshape(blocks.shape[0], -1)


def q8_0(blocks: U8) -> F64:
    """Weights ``[N, K]`` of raw blocks ``[N, K/32, 34]``: fp16 d, then 32 signed bytes; w = d * code."""
    if blocks.shape[-1] != Q8_0_BYTES:
        raise ValueError(f"a Q8_0 block has {Q8_0_BYTES} bytes, got {blocks.shape[-1]}")
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float64)
    weights: F64 = _half(blocks[..., 0:2])[..., None] * codes
    return weights.reshape(blocks.shape[0], -1)
