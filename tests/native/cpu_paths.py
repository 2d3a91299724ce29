"""Runs a native CPU op on every instruction set of this machine and on several thread counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from native import ops
from native.bindings.runtime import ISAS

THREADS = (1, 2, 3)


@contextmanager
def path(isa: str, threads: int) -> Iterator[None]:
    """One instruction set and thread count for the block; what was in use comes back after it."""
    isa_before, threads_before = ops.isa(), ops.threads()
    ops.set_isa(isa)
    ops.set_threads(threads)
    try:
        yield
    finally:
        ops.set_isa(isa_before)
        ops.set_threads(threads_before)


def paths() -> list[tuple[str, int]]:
    """(instruction set, threads): every set that this machine has, the widest with every thread count."""
    widest = ISAS.index(ops.best_isa())
    return [*((isa, 2) for isa in ISAS[:widest]), *((ISAS[widest], threads) for threads in THREADS)]


def same_on_every_path(run: Callable[[], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    """The results of ``run``, once every path gave the same bits; NaN counts as equal to NaN."""
    first: tuple[torch.Tensor, ...] | None = None
    for isa, threads in paths():
        with path(isa, threads):
            results = tuple(result.clone() for result in run())
        if first is None:
            first = results
        for number, (seen, expected) in enumerate(zip(results, first, strict=True)):
            assert_same_bits(seen, expected, f"result {number} with {isa}, {threads} threads")
    assert first is not None
    return first


def assert_same_bits(seen: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Fail with the first element that differs, its place and both values."""
    assert seen.shape == expected.shape, f"{what}: shape {tuple(seen.shape)}, expected {tuple(expected.shape)}"
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[seen.element_size()]
    different = seen.contiguous().view(integers) != expected.contiguous().view(integers)
    if seen.dtype.is_floating_point:
        different &= ~(seen.float().isnan() & expected.float().isnan())
    places = different.nonzero()
    if len(places):
        at = tuple(places[0].tolist())
        raise AssertionError(f"{what}: {len(places)} differ, first at {at}: {seen[at]!r}, not {expected[at]!r}")
