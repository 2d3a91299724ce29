from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.state.blocks import BlockPool, BlockPoolExhausted
from engine.state.sequence import SequenceState
from engine.state.slots import FRESH, NO_SLOT, RecurrentSlots

BLOCK = 4


class SequenceMachine(RuleBasedStateMachine):
    """Two sequences share the pools and go through any order of transactions.

    The model beside it writes "token t lies in slot s" as a cache would, and "this text led to state s" as a recurrent
    layer would, rejected rows included, and reads back.
    """

    @initialize(lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)))
    def start(self, lengths: tuple[int, int]) -> None:
        self.pool = BlockPool(12, BLOCK)
        self.state_pool = BlockPool(24, 1)
        self.sequences = [
            SequenceState(range(100 * who, 100 * who + n), self.pool, recurrent=RecurrentSlots(self.state_pool))
            for who, n in enumerate(lengths)
        ]
        self.cache: dict[int, int] = {}
        self.states: dict[int, tuple[int, ...]] = {FRESH: ()}
        self.next_token = 1000

    @rule(who=st.integers(0, 1), data=st.data())
    def prefill(self, who: int, data: st.DataObject) -> None:
        sequence = self.sequences[who]
        left = sequence.num_to_prefill
        if not left:
            return
        count = data.draw(st.integers(1, left))
        if sequence.blocks_missing(count) > self.pool.num_free:
            return
        self._write(sequence, list(sequence.token_ids[sequence.num_computed :][:count]), all_stay=True)
        ends_prompt = sequence.num_computed + count == len(sequence.token_ids)
        sequence.commit(count, self._new_tokens(1) if ends_prompt else ())

    @rule(who=st.integers(0, 1), drafts=st.integers(0, 7), data=st.data())
    def round(self, who: int, drafts: int, data: st.DataObject) -> None:
        sequence = self.sequences[who]
        if sequence.num_to_prefill:
            return
        if sequence.blocks_missing(drafts + 1) > self.pool.num_free:
            before = list(sequence.block_table)
            with pytest.raises(BlockPoolExhausted):
                sequence.reserve(drafts + 1)
            assert sequence.block_table == before
            return
        proposal = self._new_tokens(drafts)
        self._write(sequence, [sequence.token_ids[-1], *proposal], all_stay=False)
        accepted = data.draw(st.integers(0, drafts))
        sequence.commit(accepted + 1, [*proposal[:accepted], *self._new_tokens(1)])

    @rule(who=st.integers(0, 1))
    def start_again(self, who: int) -> None:
        self.sequences[who].release()

    @invariant()
    def the_cache_holds_the_history_and_nothing_is_lost(self) -> None:
        if not hasattr(self, "pool"):
            return
        for sequence in self.sequences:
            assert len(sequence.block_table) == -(-sequence.num_computed // BLOCK)
            for position in range(sequence.num_computed):
                slot = sequence.block_table[position // BLOCK] * BLOCK + position % BLOCK
                assert self.cache[slot] == sequence.token_ids[position]
        held = [block for sequence in self.sequences for block in sequence.block_table]
        assert len(held) == len(set(held))
        assert len(held) + self.pool.num_free == self.pool.num_blocks - 1

    @invariant()
    def the_state_is_the_one_behind_the_history(self) -> None:
        if not hasattr(self, "pool"):
            return
        current = [sequence.recurrent.current for sequence in self.sequences if sequence.recurrent is not None]
        for sequence, slot in zip(self.sequences, current, strict=True):
            assert self.states[slot] == tuple(sequence.token_ids[: sequence.num_computed])
        held = [slot for slot in current if slot != FRESH]
        assert len(held) == len(set(held))
        assert len(held) + self.state_pool.num_free == self.state_pool.num_blocks - 1

    def _write(self, sequence: SequenceState, tokens: list[int], all_stay: bool) -> None:
        reservation = sequence.reserve(len(tokens), all_stay=all_stay)
        assert reservation.start == sequence.num_computed
        self.cache.update(zip(reservation.slot_mapping, tokens, strict=True))
        assert reservation.states is not None
        text = self.states[reservation.states.read]
        for token, slot in zip(tokens, reservation.states.write, strict=True):
            text = (*text, token)
            if slot != NO_SLOT:
                self.states[slot] = text
        assert (reservation.states.write.count(NO_SLOT) == len(tokens) - 1) == (all_stay or len(tokens) == 1)

    def _new_tokens(self, count: int) -> list[int]:
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))


TestSequence = SequenceMachine.TestCase


def sequence_of(tokens: int) -> SequenceState:
    return SequenceState(range(tokens), BlockPool(8, BLOCK))


def test_a_round_at_a_block_boundary_reserves_one_row_more_than_its_drafts() -> None:
    sequence = sequence_of(BLOCK - 1)
    sequence.reserve(BLOCK - 1)
    sequence.commit(BLOCK - 1, [50])
    # One slot is left in the block; K = 1 draft and the anchor need two.
    reservation = sequence.reserve(2)
    assert len(sequence.block_table) == 2
    first, second = reservation.slot_mapping
    assert first // BLOCK == sequence.block_table[0]
    assert second // BLOCK == sequence.block_table[1]
    sequence.commit(1, [51])
    assert len(sequence.block_table) == 1


def test_a_transaction_is_opened_once_and_closed_once() -> None:
    sequence = sequence_of(3)
    with pytest.raises(RuntimeError, match="nothing is reserved; reserve before commit"):
        sequence.commit(1)
    sequence.reserve(2)
    with pytest.raises(RuntimeError, match="2 rows are reserved already"):
        sequence.reserve(1)


@pytest.mark.parametrize(("rows", "emitted", "message"), [(3, (), "3 rows to commit"), (-1, (), "-1 rows to commit")])
def test_only_reserved_rows_can_be_committed(rows: int, emitted: tuple[int, ...], message: str) -> None:
    sequence = sequence_of(3)
    sequence.reserve(2)
    with pytest.raises(ValueError, match=message):
        sequence.commit(rows, emitted)


def test_a_row_without_its_token_is_refused() -> None:
    sequence = sequence_of(3)
    sequence.reserve(5)
    with pytest.raises(ValueError, match=r"0 \+ 5 rows would be committed for 3 \+ 1 ids"):
        sequence.commit(5, [9])


def test_a_released_sequence_prefills_all_but_its_anchor() -> None:
    sequence = sequence_of(3)
    sequence.reserve(3)
    sequence.commit(3, [50])
    assert sequence.num_to_prefill == 0
    sequence.release()
    assert sequence.num_to_prefill == 3
    assert list(sequence.emitted) == [50]
    sequence.reserve(3)
    sequence.commit(3)
    assert sequence.num_to_prefill == 0


def test_a_chunk_is_committed_whole_or_not_at_all() -> None:
    states = BlockPool(8, 1)
    sequence = SequenceState(range(3), BlockPool(8, BLOCK), recurrent=RecurrentSlots(states))
    sequence.reserve(3, all_stay=True)
    with pytest.raises(ValueError, match="the state after row 2 of 3 was not kept; commit all rows or none"):
        sequence.commit(2)
    sequence.commit(0)
    assert states.num_free == 7
    sequence.reserve(3, all_stay=True)
    sequence.commit(3, [50])
    assert states.num_free == 6


def test_without_room_for_states_nothing_is_reserved() -> None:
    blocks, states = BlockPool(8, BLOCK), BlockPool(3, 1)
    sequence = SequenceState(range(3), blocks, recurrent=RecurrentSlots(states))
    with pytest.raises(BlockPoolExhausted, match="3 blocks of 1 slots asked for, 2 of 2 free"):
        sequence.reserve(3)
    assert (blocks.num_free, states.num_free, sequence.block_table) == (7, 2, [])
