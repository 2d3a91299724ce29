"""The engine's seeded random numbers for many seeds at once: the same bits, a hundred times as fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.sampling.random import Purpose
from engine.steps.records import unit_interval
from suites.oracles import philox

_WORD = 1 << 32


@dataclass(frozen=True, slots=True)
class OneSeed:
    """One row of the table, as `Noise`."""

    table: dict[tuple[int, Purpose], list[int]]
    row: int

    def bits(self, position: int, purpose: Purpose) -> int:
        return self.table[position, purpose][self.row]

    def uniform(self, position: int, purpose: Purpose) -> float:
        return unit_interval(self.table[position, purpose][self.row])


class SeededNumbers:
    """The numbers of ``count`` positions from ``first`` on, of each purpose, under each of ``seeds``."""

    def __init__(self, seeds: Sequence[int], first: int, count: int) -> None:
        keys = np.array(seeds, dtype=np.uint64)
        self._count = len(keys)
        self._table = {
            (position, purpose): philox.blocks((0, int(purpose), position % _WORD, position // _WORD), keys).tolist()
            for position in range(first, first + count)
            for purpose in Purpose
        }

    def __iter__(self) -> Iterator[OneSeed]:
        return (OneSeed(self._table, row) for row in range(self._count))
