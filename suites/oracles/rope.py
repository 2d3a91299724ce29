"""Rotary embedding and the KV store in fp64; the table of cosines and sines is an input and is not judged."""

from __future__ import annotations

import numpy as np

from suites.oracles.arrays import F64, I64, Ints


def pair_indices(rotary: int, interleaved: bool) -> tuple[I64, I64]:
    """First and second member of each rotated pair: (2i, 2i+1) interleaved, else (i, i + rotary/2)."""
    if rotary % 2:
        raise ValueError(f"rotary width must be even, got {rotary}")
    half = np.arange(rotary // 2)
    return (2 * half, 2 * half + 1) if interleaved else (half, half + rotary // 2)


def rotate(x: F64, cos_sin: F64, positions: Ints, *, interleaved: bool) -> F64:
    """``x [T, heads, D]`` rotated by the rows ``positions [T]`` of ``cos_sin [P, R/2, 2]``.

    Only the first R elements of a head turn (partial rotary); the others pass unchanged.
    """
    first, second = pair_indices(2 * cos_sin.shape[1], interleaved)
    cos = cos_sin[positions, None, :, 0]
    sin = cos_sin[positions, None, :, 1]
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def rotate_magnitude(x: F64, cos_sin: F64, positions: Ints, *, interleaved: bool) -> F64:
    """``|a cos| + |b sin|`` of each rotated element; 0 where an element passes unchanged and so must be exact."""
    first, second = pair_indices(2 * cos_sin.shape[1], interleaved)
    cos = np.abs(cos_sin[positions, None, :, 0])
    sin = np.abs(cos_sin[positions, None, :, 1])
    out = np.zeros_like(x)
    out[..., first] = np.abs(x[..., first]) * cos + np.abs(x[..., second]) * sin
    out[..., second] = np.abs(x[..., first]) * sin + np.abs(x[..., second]) * cos
    return out


def split_qkv(qkv: F64, q_heads: int, kv_heads: int, head_dim: int) -> tuple[F64, F64, F64]:
    """``[T, (Hq + 2 Hkv) D]`` -> q ``[T, Hq, D]``, k and v ``[T, Hkv, D]``."""
    heads = qkv.reshape(qkv.shape[0], q_heads + 2 * kv_heads, head_dim)
    return heads[:, :q_heads], heads[:, q_heads : q_heads + kv_heads], heads[:, q_heads + kv_heads :]


def store(cache: F64, rows: F64, slot_mapping: Ints) -> F64:
    """A copy of ``cache [blocks, block_size, Hkv, D]`` with ``rows [T, Hkv, D]`` at their slots; -1 is not written.

    Slot s is token ``s % block_size`` of block ``s // block_size``.
    """
    out = cache.copy()
    block_size = cache.shape[1]
    for row, slot in zip(rows, slot_mapping.tolist(), strict=True):
        if slot == -1:
            continue
        if not 0 <= slot < cache.shape[0] * block_size:
            raise ValueError(f"slot {slot} is outside the cache of {cache.shape[0]} x {block_size}")
        out[slot // block_size, slot % block_size] = row
    return out
