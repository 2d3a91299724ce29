"""The pool of KV blocks: whole numbers only, no tensors.

A block holds ``block_size`` token slots of every layer. Block 0 is the null block: it is never handed out, so that a
block table padded with zeros points at no request's data.
"""

from __future__ import annotations

from collections import deque

NULL_BLOCK = 0


class BlockPoolExhausted(RuntimeError):
    """More blocks were asked for than are free; the scheduler asks ``num_free`` first, so this is a defect."""


class BlockPool:
    """Hands out blocks and takes them back. A block is either free or owned by exactly one sequence."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool of {num_blocks} blocks cannot serve: block 0 is never handed out; allowed: 2 up")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; allowed: 1 or more")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Lowest ids first, last returned first out: memory that was never touched stays unmapped.
        self._free: deque[int] = deque(range(NULL_BLOCK + 1, num_blocks))
        self._owned: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that ``allocate`` can hand out now."""
        return len(self._free)

    @property
    def capacity_tokens(self) -> int:
        """Token slots of the whole pool."""
        return (self.num_blocks - 1) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` slots take."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """``count`` free blocks, all or none. Raises ``BlockPoolExhausted``."""
        if count > len(self._free):
            raise BlockPoolExhausted(
                f"{count} blocks of {self.block_size} slots asked for, {len(self._free)} of {self.num_blocks - 1} free"
            )
        blocks = [self._free.popleft() for _ in range(count)]
        self._owned.update(blocks)
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Take ``blocks`` back. Raises ``ValueError`` for one that is not out (a double free), before any is taken."""
        strange = [block for block in blocks if block not in self._owned]
        if strange or len(set(blocks)) != len(blocks):
            raise ValueError(f"blocks {strange or blocks} are not out; allowed: blocks that allocate gave, once each")
        self._owned.difference_update(blocks)
        self._free.extendleft(reversed(blocks))
