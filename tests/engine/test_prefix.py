from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.state.blocks import BlockPool
from engine.state.prefix import ROOT, KnownPrefix, PrefixIndex
from engine.state.sequence import SequenceState
from engine.state.slots import FRESH, NO_SLOT, RecurrentSlots

SIZE = 4


def computed(tokens: list[int], pool: BlockPool, index: PrefixIndex) -> SequenceState:
    """A sequence whose prompt is in the cache, and how it got there."""
    sequence = SequenceState(tokens, pool, index)
    sequence.adopt_prefix()
    left = sequence.num_to_prefill
    sequence.reserve(left)
    sequence.commit(left, [99])
    return sequence


def test_a_known_prefix_is_not_computed_again() -> None:
    pool = BlockPool(12, SIZE)
    index = PrefixIndex(pool)
    first = computed([1, 2, 3, 4, 5, 6, 7, 8, 9], pool, index)
    second = SequenceState([1, 2, 3, 4, 5, 6, 7, 8, 0, 0], pool, index)
    assert second.adopt_prefix() == 8
    assert second.block_table == first.block_table[:2]
    assert second.num_to_prefill == 2
    first.release()
    # The blocks outlive their first owner, and this one's release.
    second.release()
    third = SequenceState([1, 2, 3, 4, 7, 7, 7, 7, 0], pool, index)
    assert third.adopt_prefix() == 4


def test_at_least_one_token_is_left_to_compute() -> None:
    pool = BlockPool(12, SIZE)
    index = PrefixIndex(pool)
    computed([1, 2, 3, 4, 5, 6, 7, 8], pool, index)
    again = SequenceState([1, 2, 3, 4, 5, 6, 7, 8], pool, index)
    assert again.adopt_prefix() == 4


def test_the_same_block_after_another_prefix_is_another_text() -> None:
    pool = BlockPool(12, SIZE)
    index = PrefixIndex(pool)
    computed([1, 1, 1, 1, 5, 6, 7, 8, 0], pool, index)
    assert index.find([2, 2, 2, 2, 5, 6, 7, 8, 0]) == KnownPrefix((), ROOT)
    assert index.find([5, 6, 7, 8, 0]) == KnownPrefix((), ROOT)


def test_emitted_tokens_can_be_a_prefix_too() -> None:
    pool = BlockPool(12, SIZE)
    index = PrefixIndex(pool)
    sequence = computed([1, 2, 3], pool, index)
    for token in (50, 51):
        sequence.reserve(1)
        sequence.commit(1, [token])
    assert SequenceState([1, 2, 3, 99, 50, 51, 0], pool, index).adopt_prefix() == 4


@given(texts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=12))
def test_what_is_adopted_is_what_was_computed(texts: list[list[int]]) -> None:
    """A cache of few blocks and texts over two letters: sharing, eviction and chains with lost prefixes."""
    pool = BlockPool(7, SIZE)
    index = PrefixIndex(pool)
    cache: dict[int, int] = {}
    for tokens in texts:
        sequence = SequenceState(tokens, pool, index)
        reused = sequence.adopt_prefix()
        left = sequence.num_to_prefill
        slots = sequence.reserve(left).slot_mapping
        cache.update(zip(slots, tokens[reused:], strict=True))
        sequence.commit(left, [9])
        for position, token in enumerate(tokens):
            assert cache[sequence.block_table[position // SIZE] * SIZE + position % SIZE] == token
        sequence.release()
        assert pool.num_free == 6


def test_with_recurrent_layers_a_prefix_ends_where_a_state_was_kept() -> None:
    pool, states = BlockPool(12, SIZE), BlockPool(10, 1)
    index = PrefixIndex(pool, states, max_states=4)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 0]
    first = SequenceState(text, pool, index, RecurrentSlots(states))
    first.reserve(8, all_stay=True)  # the state after token 8 is kept, the one after token 4 is not
    first.commit(8)
    first.reserve(5, all_stay=True)
    first.commit(5, [50])
    second = SequenceState(text, pool, index, RecurrentSlots(states))
    assert second.adopt_prefix() == 8
    assert second.recurrent is not None
    kept = second.recurrent.current
    assert kept != FRESH
    # Reading goes on from the shared state; writing goes elsewhere.
    rows = second.reserve(5).states
    assert rows is not None
    assert rows.read == kept
    assert kept not in rows.write
    second.commit(5, [50])
    first.release()
    second.release()
    assert states.num_free == 7  # two states are in the index: after token 8, and 12, which the second one passed


def test_a_round_keeps_the_state_at_the_block_boundary_it_passes() -> None:
    pool, states = BlockPool(12, SIZE), BlockPool(12, 1)
    index = PrefixIndex(pool, states, max_states=4)
    sequence = SequenceState([1, 2, 3], pool, index, RecurrentSlots(states))
    sequence.reserve(3, all_stay=True)
    sequence.commit(3, [50])
    rows = sequence.reserve(3)
    sequence.commit(2, [51, 52])
    assert rows.states is not None
    assert index.find([1, 2, 3, 50, 7]).state_slot == rows.states.write[0]


def test_states_are_kept_up_to_a_limit_and_go_with_their_block() -> None:
    pool, states = BlockPool(4, SIZE), BlockPool(8, 1)
    index = PrefixIndex(pool, states, max_states=1)
    for first in (1, 2, 3, 4, 5):
        sequence = SequenceState([first] * 5, pool, index, RecurrentSlots(states))
        sequence.reserve(4, all_stay=True)
        sequence.commit(4)
        sequence.release()
        assert states.num_free == 6
        assert index.find([first] * 5).state_slot != NO_SLOT
    pool.allocate(3)
    assert states.num_free == 7
