"""The pool of KV blocks: integers only, no tensors.

A block holds ``block_size`` token slots of every layer. Block 0 is the null block: it is never handed out, so that a
block table padded with zeros points at no request's data. A block may have several owners (a shared prefix); one that
is marked to be kept stays readable after its last owner has left, until its room is needed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

NULL_BLOCK = 0


class BlockPoolExhausted(RuntimeError):
    """More blocks were asked for than are free; the scheduler asks ``num_free`` first, so this is a defect."""


class BlockPool:
    """Hands out blocks and takes them back. Each block is free, idle (kept, without an owner) or owned."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks cannot serve: block 0 is never handed out; allowed: 2 up")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; allowed: 1 or more")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] = _nothing
        # Lowest ids first, last returned first out: memory that was never touched stays unmapped.
        self._free: deque[int] = deque(range(NULL_BLOCK + 1, num_blocks))
        self._owners: dict[int, int] = {}
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out now; the idle ones count."""
        return len(self._free) + len(self._idle)

    @property
    def capacity_tokens(self) -> int:
        """Token slots of the whole pool."""
        return (self.num_blocks - 1) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` slots take."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks with one owner each, all or none. Idle blocks go last, and ``on_evict`` hears of each.

        Raises ``BlockPoolExhausted``.
        """
        if count > self.num_free:
            raise BlockPoolExhausted(
                f"{count} blocks of {self.block_size} slots asked for, {self.num_free} of {self.num_blocks - 1} free"
            )
        blocks = [self._free.popleft() if self._free else self._evict() for _ in range(count)]
        self._owners.update(dict.fromkeys(blocks, 1))
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add an owner to blocks that are owned or idle. Raises ``ValueError`` for others, before any is changed."""
        empty = [block for block in blocks if block not in self._owners and block not in self._idle]
        if empty:
            raise ValueError(f"blocks {empty} hold nothing; allowed: blocks that are owned or kept")
        for block in blocks:
            self._idle.pop(block, None)
            self._owners[block] = self._owners.get(block, 0) + 1

    def keep(self, block: int) -> None:
        """Leave an owned block readable when its last owner goes."""
        if block not in self._owners:
            raise ValueError(f"block {block} has no owner; allowed: blocks that are owned")
        self._kept.add(block)

    def free(self, blocks: Sequence[int]) -> None:
        """Take one owner off each block. Raises ``ValueError`` for one that has none, before any is changed."""
        unowned = [block for block in blocks if block not in self._owners]
        if unowned or len(set(blocks)) != len(blocks):
            raise ValueError(f"blocks {unowned or blocks} are not out; allowed: blocks that have an owner, once each")
        # From the end: the first block of a text is the one that another text is most likely to share.
        for block in reversed(blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
                self._retire(block)

    def _retire(self, block: int) -> None:
        if block in self._kept:
            self._idle[block] = None
        else:
            self._free.appendleft(block)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._kept.remove(block)
        self.on_evict(block)
        return block


def _nothing(block: int) -> None:
    """Nobody keeps blocks, so nobody needs to hear of an eviction."""
