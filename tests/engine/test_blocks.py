from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.state.blocks import NULL_BLOCK, BlockPool, BlockPoolExhausted


class BlockPoolMachine(RuleBasedStateMachine):
    """Any order of allocations and returns: no block is lost, none is given twice."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 4)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        if count <= free:
            self.held.append(self.pool.allocate(count))
            assert len(self.held[-1]) == count
        else:
            with pytest.raises(BlockPoolExhausted, match=f"{count} blocks of 4 slots asked for, {free} of"):
                self.pool.allocate(count)
            assert self.pool.num_free == free

    @rule(which=st.integers(0, 100))
    def give_back(self, which: int) -> None:
        if self.held:
            self.pool.free(self.held.pop(which % len(self.held)))

    @invariant()
    def every_block_is_free_or_held_once(self) -> None:
        if not hasattr(self, "pool"):
            return
        out = [block for blocks in self.held for block in blocks]
        assert len(out) == len(set(out))
        assert NULL_BLOCK not in out
        assert len(out) + self.pool.num_free == self.pool.num_blocks - 1


TestBlockPool = BlockPoolMachine.TestCase


def test_a_double_free_is_refused_and_takes_nothing() -> None:
    pool = BlockPool(4, 16)
    first, second = pool.allocate(2)
    pool.free([first])
    with pytest.raises(ValueError, match=rf"blocks \[{first}\] are not out"):
        pool.free([second, first])
    with pytest.raises(ValueError, match="are not out"):
        pool.free([second, second])
    assert pool.num_free == 2


def test_low_blocks_go_first_so_that_untouched_memory_stays_unmapped() -> None:
    pool = BlockPool(10, 16)
    blocks = pool.allocate(2)
    pool.free(blocks)
    assert pool.allocate(3) == [1, 2, 3]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 16), (4, 0)])
def test_a_pool_that_cannot_serve_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="allowed"):
        BlockPool(num_blocks, block_size)


def test_a_shared_block_stays_until_its_last_owner_left() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.free(blocks)
    assert pool.num_free == 1
    pool.free(blocks)
    assert pool.num_free == 3


def test_a_kept_block_can_be_shared_again_until_its_room_is_needed() -> None:
    pool, evicted = BlockPool(4, 16), list[int]()
    pool.on_evict = evicted.append
    first, second = pool.allocate(2)
    pool.keep(first)
    pool.keep(second)
    pool.free([first, second])
    assert pool.num_free == 3
    pool.share([first])
    assert pool.num_free == 2
    assert pool.allocate(2) == [3, second]
    assert evicted == [second]
    with pytest.raises(ValueError, match=f"blocks \\[{second + 5}\\] hold nothing"):
        pool.share([second + 5])
    pool.free([first])
    assert pool.allocate(1) == [first]
    assert evicted == [second, first]


def test_the_end_of_a_text_is_evicted_before_its_beginning() -> None:
    pool, evicted = BlockPool(4, 16), list[int]()
    pool.on_evict = evicted.append
    blocks = pool.allocate(3)
    for block in blocks:
        pool.keep(block)
    pool.free(blocks)
    pool.allocate(2)
    assert evicted == [blocks[2], blocks[1]]
