"""Attention over a paged KV cache in fp64, one query row at a time and with nothing clever.

The query rows of a sequence are its last ``q_len`` positions. ``Attended`` carries, beside the answer, the two
magnitudes that the error bound in ``tolerance`` is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suites.oracles.arrays import F64, Ints


@dataclass(frozen=True, slots=True)
class Attended:
    """``out [T, Hq, D]``; of the same shape ``spread`` = sum of probability * |v| and ``values`` = sum of |v|.

    Per row and head ``[T, Hq]``: ``score_magnitude`` = largest scale * sum|q||k| over the visible keys, ``score`` =
    largest |score|, ``keys`` = number of visible keys.
    """

    out: F64
    spread: F64
    values: F64
    score_magnitude: F64
    score: F64
    keys: F64


def visible(
    position: int,
    kv_len: int,
    *,
    causal: bool,
    window: tuple[int, int] = (-1, -1),
    anchor_len: int | None = None,
    anchored_window: int = 0,
) -> npt.NDArray[np.bool_]:
    """Which keys ``0..kv_len-1`` the query at ``position`` sees.

    ``window = (left, right)``, -1 = unlimited: position - left <= key <= position + right. A non-causal mask with only
    a left window is symmetric. With an anchor: key < anchor_len or position - key < anchored_window, besides causality.
    """
    left, right = window
    if left < -1 or right < -1:
        raise ValueError(f"window {window}: -1 (unlimited) is the least")
    if not causal and left >= 0 and right < 0:
        right = left
    keys = np.arange(kv_len)
    keep = np.ones(kv_len, dtype=np.bool_)
    if causal:
        keep &= keys <= position
    if left >= 0:
        keep &= keys >= position - left
    if right >= 0:
        keep &= keys <= position + right
    if anchor_len is not None:
        keep &= (keys < anchor_len) | (position - keys < anchored_window)
    return keep


def gather(cache: F64, block_table_row: Ints, length: int) -> F64:
    """The first ``length`` tokens ``[length, Hkv, D]`` of one sequence, in order."""
    block_size = cache.shape[1]
    tokens = np.arange(length)
    out: F64 = cache[block_table_row[tokens // block_size], tokens % block_size]
    return out


def paged_attention(
    q: F64,
    k_cache: F64,
    v_cache: F64,
    block_table: Ints,
    seq_lens: Ints,
    query_start: Ints,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int, int] = (-1, -1),
    anchor_lens: Ints | None = None,
    anchored_window: int = 0,
) -> Attended:
    """Softmax(scale * q k) v for ``q [T, Hq, D]`` over caches ``[blocks, block_size, Hkv, D]``.

    A row that sees no key is zero. Tokens at or past a sequence's length are never read: they may be NaN.
    """
    group = q.shape[1] // k_cache.shape[2]
    out, spread, values = (np.zeros_like(q) for _ in range(3))
    score_magnitude, score, keys = (np.zeros(q.shape[:2]) for _ in range(3))
    for request, length in enumerate(seq_lens.tolist()):
        begin, end = int(query_start[request]), int(query_start[request + 1])
        k = gather(k_cache, block_table[request], length)
        v = gather(v_cache, block_table[request], length)
        anchor = None if anchor_lens is None else int(anchor_lens[request])
        for row in range(begin, end):
            position = length - (end - begin) + (row - begin)
            keep = visible(
                position, length, causal=causal, window=window, anchor_len=anchor, anchored_window=anchored_window
            )
            if not keep.any():
                continue
            for head in range(q.shape[1]):
                live_k, live_v = k[keep, head // group], v[keep, head // group]
                scores = scale * (live_k @ q[row, head])
                probabilities = np.exp(scores - scores.max())
                probabilities /= probabilities.sum()
                out[row, head] = probabilities @ live_v
                spread[row, head] = probabilities @ np.abs(live_v)
                values[row, head] = np.abs(live_v).sum(axis=0)
                score_magnitude[row, head] = (abs(scale) * (np.abs(live_k) @ np.abs(q[row, head]))).max()
                score[row, head] = np.abs(scores).max()
                keys[row, head] = keep.sum()
    return Attended(out, spread, values, score_magnitude, score, keys)
