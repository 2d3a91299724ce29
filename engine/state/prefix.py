"""Which full blocks hold which text, so that a request with a known prefix need not compute it again.

Integers only. Texts are chains: a block is known by the chain before it and its own tokens, compared in full,
so one text never passes for another. Where a model has recurrent layers, a prefix is of use only up to a
block after which the recurrent state was kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.state.blocks import BlockPool
from engine.state.slots import NO_SLOT

ROOT = 0

Key = tuple[int, tuple[int, ...]]  # the link before, the block's tokens


@dataclass(frozen=True, slots=True)
class KnownPrefix:
    """The blocks of a prefix that is in the cache, the chain's last link, and the recurrent state after it."""

    blocks: tuple[int, ...]
    link: int
    state_slot: int = NO_SLOT


class PrefixIndex:
    """Finds and remembers full blocks of a pool. A block leaves when the pool needs its room."""

    def __init__(self, pool: BlockPool, state_pool: BlockPool | None = None, max_states: int = 0) -> None:
        """``state_pool`` is given where the model has recurrent layers; up to ``max_states`` of its slots are kept."""
        self._pool = pool
        self._state_pool = state_pool
        self._max_states = max_states
        self._next_link = ROOT + 1
        self._known: dict[Key, tuple[int, int]] = {}  # -> (block, link)
        self._key_of_block: dict[int, Key] = {}
        self._states: OrderedDict[int, int] = OrderedDict()  # link -> slot, least recently used first
        pool.on_evict = self._forget

    def find(self, token_ids: Sequence[int]) -> KnownPrefix:
        """The longest known prefix of ``token_ids`` that can be used and leaves at least one token to compute."""
        size = self._pool.block_size
        blocks: list[int] = []
        link, best = ROOT, KnownPrefix((), ROOT)
        for start in range(0, len(token_ids) - size, size):
            known = self._known.get((link, tuple(token_ids[start : start + size])))
            if known is None:
                break
            blocks.append(known[0])
            link = known[1]
            if self._state_pool is None or link in self._states:
                best = KnownPrefix(tuple(blocks), link, self._states.get(link, NO_SLOT))
        if best.link in self._states:
            self._states.move_to_end(best.link)
        return best

    def remember(self, link: int, token_ids: Sequence[int], block: int, state_slot: int = NO_SLOT) -> int:
        """Note that ``block`` holds ``token_ids`` after the chain that ends at ``link``; returns the new last link.

        If another block holds the same text already, that one stays the known one. ``state_slot`` is the recurrent
        state after the block, where it was kept.
        """
        key = (link, tuple(token_ids))
        known = self._known.get(key)
        if known is None:
            known = (block, self._next_link)
            self._next_link += 1
            self._known[key] = known
            self._key_of_block[block] = key
            self._pool.keep(block)
        if state_slot != NO_SLOT:
            self._keep_state(known[1], state_slot)
        return known[1]

    def _keep_state(self, link: int, slot: int) -> None:
        if self._state_pool is None or not self._max_states or link in self._states:
            return
        if len(self._states) == self._max_states:
            _, oldest = self._states.popitem(last=False)
            self._state_pool.free([oldest])
        self._state_pool.share([slot])
        self._states[link] = slot

    def _forget(self, block: int) -> None:
        # Links are never used twice, so what followed this block can no longer be reached and ages out by itself.
        _, link = self._known.pop(self._key_of_block.pop(block))
        slot = self._states.pop(link, NO_SLOT)
        if slot != NO_SLOT and self._state_pool is not None:
            self._state_pool.free([slot])
