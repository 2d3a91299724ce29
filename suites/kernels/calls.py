"""One representative call of every op, over seeded data, for the cases that compare bits and not values.

A call runs the op on ``rows`` rows and returns its output as an array. The first rows of a longer run hold the same
data as a shorter one, so a row can be compared across batch sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.ops import functional
from suites.kernels import inputs
from suites.targets import Target, array

MOST_ROWS = 64

_Sequences = tuple[inputs.Paged, torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpCall:
    """``run(target, rows)`` -> output bits, first axis = rows."""

    name: str
    run: Callable[[Target, int], npt.NDArray[Any]]

    def __str__(self) -> str:
        return self.name


@functools.cache
def _all_rows(target: Target, width: int, sigma: float) -> torch.Tensor:
    return target.put(inputs.normal(inputs.generator(width), MOST_ROWS, width, sigma=sigma))


def _rows(target: Target, rows: int, width: int, sigma: float = 1.0) -> torch.Tensor:
    return _all_rows(target, width, sigma)[:rows]


def _rms_norm(target: Target, rows: int) -> npt.NDArray[Any]:
    weight = target.put(inputs.normal(inputs.generator(1), 576), torch.float32)
    return array(functional.rms_norm(_rows(target, rows, 576), weight, 1e-5))


@functools.cache
def _weight(target: Target, kind: str, n: int, k: int) -> functional.Weight:
    rng = inputs.generator(n, k)
    if kind == "q4_1":
        return functional.pack_q4_1(target.put(inputs.q4_1_blocks(rng, n, k)))
    if kind == "q8_0":
        return functional.pack_q8_0(target.put(inputs.q8_0_blocks(rng, n, k)))
    return target.put(inputs.normal(rng, n, k, sigma=0.1))


def _linear(kind: str, n: int, k: int) -> Callable[[Target, int], npt.NDArray[Any]]:
    return lambda target, rows: array(functional.linear(_rows(target, rows, k), _weight(target, kind, n, k)))


def _silu_mul(target: Target, rows: int) -> npt.NDArray[Any]:
    return array(functional.silu_mul(_rows(target, rows, 3072, sigma=4.0)))


def _embedding(target: Target, rows: int) -> npt.NDArray[Any]:
    weight = _weight(target, "q8_0", 300, 576)
    assert isinstance(weight, functional.PackedQ8_0)
    return array(functional.embedding(target.put(np.arange(rows) * 7 % 300), weight))


def _rope_store_kv(target: Target, rows: int) -> npt.NDArray[Any]:
    """Queries, keys and values side by side, read back from the cache."""
    cache = torch.zeros(5, 2, 16, inputs.KV_HEADS, 64, dtype=target.activations, device=target.name)
    q = functional.rope_store_kv(
        _rows(target, rows, inputs.QKV),
        target.put(inputs.cos_sin_table(500, 64), torch.float32),
        target.put((np.arange(rows) * 13 % 500).astype(np.int32)),
        cache[:, 0],
        cache[:, 1],
        target.put(np.arange(rows)),
        interleaved=True,
    )
    stored = [array(cache[:, half]).reshape(80, inputs.KV_HEADS, 64)[:rows] for half in (0, 1)]
    return np.concatenate([array(q), *stored], axis=1)


@functools.cache
def _pages(target: Target, lengths: tuple[int, ...], block_size: int, heads: tuple[int, int], dim: int) -> _Sequences:
    """A cache with sequences of ``lengths``, and a query row for each of the last ``MOST_ROWS`` positions."""
    rng = inputs.generator(*lengths[:4])
    pages = inputs.paged(rng, target, lengths, block_size, heads[1], dim)
    return pages, target.put(inputs.normal(rng, MOST_ROWS, heads[0], dim))


def _decode(target: Target, rows: int) -> npt.NDArray[Any]:
    """``rows`` sequences of different lengths, one query each."""
    lengths = tuple(1 + 37 * row % 320 for row in range(MOST_ROWS))
    pages, q = _pages(target, lengths, 16, (inputs.Q_HEADS, inputs.KV_HEADS), 64)
    return _attend(target, pages, q[:rows], rows, (1,) * rows)


def _prefill(length: int) -> Callable[[Target, int], npt.NDArray[Any]]:
    """The last ``rows`` positions of one sequence; row i of a run is counted from the end, so it is reversed."""

    def run(target: Target, rows: int) -> npt.NDArray[Any]:
        pages, q = _pages(target, (length,), 256, (12, 2), 128)
        return _attend(target, pages, q[MOST_ROWS - rows :], 1, (rows,))[::-1]

    return run


def _attend(
    target: Target, pages: inputs.Paged, q: torch.Tensor, requests: int, queries: tuple[int, ...]
) -> npt.NDArray[Any]:
    out = functional.paged_attention(
        q,
        pages.k,
        pages.v,
        pages.block_table[:requests].contiguous(),
        pages.seq_lens[:requests].contiguous(),
        inputs.query_start(target, queries),
        scale=0.125,
        out=target.unwritten(*q.shape),
    )
    return array(out)


CALLS = (
    OpCall("rms_norm", _rms_norm),
    OpCall("linear_q4_1", _linear("q4_1", inputs.QKV, 576)),
    OpCall("linear_q4_1_down", _linear("q4_1", 576, 1536)),
    OpCall("linear_q4_1_odd", _linear("q4_1", 33, 160)),
    OpCall("linear_q8_0", _linear("q8_0", 1000, 576)),
    OpCall("linear_dense", _linear("dense", 100, 576)),
    OpCall("silu_mul", _silu_mul),
    OpCall("embedding", _embedding),
    OpCall("rope_store_kv", _rope_store_kv),
    OpCall("paged_decode", _decode),
    OpCall("paged_prefill_L300", _prefill(300)),
    OpCall("paged_prefill_L512", _prefill(512)),
)
