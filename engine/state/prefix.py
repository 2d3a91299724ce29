"""Which full blocks hold which text, so that a request with a known beginning need not compute it again.

Whole numbers only. Texts are chains: a block is known by the chain in front of it and its own tokens, compared in full,
so two texts are never taken for one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.state.blocks import BlockPool

ROOT = 0


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """The blocks of a beginning that is in the cache, and the chain's last link."""

    blocks: tuple[int, ...]
    link: int


class PrefixIndex:
    """Finds and remembers full blocks of a pool. A block leaves when the pool needs its room."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._next_link = ROOT + 1
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # (link before, tokens) -> (block, link)
        self._key_of_block: dict[int, tuple[int, tuple[int, ...]]] = {}
        pool.on_evict = self._forget

    def find(self, token_ids: Sequence[int]) -> KnownPrefix:
        """The longest known beginning of ``token_ids`` that leaves at least one token to compute."""
        size = self._pool.block_size
        blocks, link = [], ROOT
        for start in range(0, len(token_ids) - size, size):
            known = self._known.get((link, tuple(token_ids[start : start + size])))
            if known is None:
                break
            blocks.append(known[0])
            link = known[1]
        return KnownPrefix(tuple(blocks), link)

    def remember(self, link: int, token_ids: Sequence[int], block: int) -> int:
        """Note that ``block`` holds ``token_ids`` behind the chain that ends at ``link``; returns the new last link.

        If another block holds the same text already, that one stays the known one.
        """
        key = (link, tuple(token_ids))
        known = self._known.get(key)
        if known is None:
            known = (block, self._next_link)
            self._next_link += 1
            self._known[key] = known
            self._key_of_block[block] = key
            self._pool.keep(block)
        return known[1]

    def _forget(self, block: int) -> None:
        # Links are never used twice, so what followed this block can no longer be reached and ages out by itself.
        del self._known[self._key_of_block.pop(block)]
