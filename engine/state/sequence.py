"""The state of one sequence, and the one transaction that moves it: reserve, then commit.

Integers only. A round reserves K+1 rows (the anchor and K drafts), the model writes them, and ``commit`` keeps the
first ``rows`` of them; the others are freed, so a rejected token leaves nothing that can be reached.
KV blocks and recurrent states move together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine.state.blocks import BlockPool, BlockPoolExhausted
from engine.state.prefix import ROOT, PrefixIndex
from engine.state.slots import NO_SLOT, RecurrentSlots, StateRows


@dataclass(frozen=True, slots=True)
class Reservation:
    """Rows that may be written: ``count`` positions from ``start``, the KV slot of each, and its recurrent state."""

    start: int
    slot_mapping: tuple[int, ...]
    states: StateRows | None = None

    @property
    def count(self) -> int:
        """Number of rows reserved."""
        return len(self.slot_mapping)

    def first(self, rows: int) -> Reservation:
        """The first ``rows`` rows; the others stay reserved until the commit, and are freed there."""
        if not 1 <= rows <= self.count:
            raise ValueError(f"{rows} of {self.count} reserved rows; allowed: 1 to {self.count}")
        states = None if self.states is None else self.states.first(rows)
        return Reservation(self.start, self.slot_mapping[:rows], states)


class SequenceState:
    """Token history, KV blocks and, for a model with recurrent layers, states of one request.

    ``token_ids`` is the prompt and everything emitted. ``num_computed`` of them are in the cache; while decoding, all
    but the last one, the anchor, are. Between two transactions ``block_table`` covers exactly ``num_computed`` slots.

    With a ``prefix_index``, full blocks are remembered as they are committed and ``adopt_prefix`` starts from those of
    others. A shared block is full, so it is never written again.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        pool: BlockPool,
        prefix_index: PrefixIndex | None = None,
        recurrent: RecurrentSlots | None = None,
    ) -> None:
        self.token_ids = array("i", prompt_token_ids)
        self.num_prompt = len(prompt_token_ids)
        self.num_computed = 0
        self.block_table: list[int] = []
        self.recurrent = recurrent
        self._pool = pool
        self._prefix_index = prefix_index
        self._link = ROOT  # of the last full block
        self._remembered = 0  # full blocks up to there are known to the index
        self._open: Reservation | None = None

    @property
    def num_to_prefill(self) -> int:
        """Tokens that still need a cache row before the next round; 0 while decoding.

        A fresh request prefills its whole prompt and the last row samples the first token. One that starts again after
        ``release`` already has its anchor, which the next round computes.
        """
        has_anchor = self.num_emitted > 0
        return len(self.token_ids) - has_anchor - self.num_computed

    @property
    def num_emitted(self) -> int:
        """How many tokens follow the prompt."""
        return len(self.token_ids) - self.num_prompt

    @property
    def emitted(self) -> array[int]:
        """The tokens after the prompt."""
        return self.token_ids[self.num_prompt :]

    def adopt_prefix(self) -> int:
        """Before the first reservation: take over what the cache already holds of the history; the tokens it saves.

        Raises ``RuntimeError`` for a sequence that has begun.
        """
        if self._prefix_index is None:
            return 0
        if self.block_table or self._open is not None:
            raise RuntimeError(f"{self.num_computed} tokens are computed already; adopt a prefix before the first one")
        known = self._prefix_index.find(self.token_ids[: self.num_to_prefill])
        self._pool.share(known.blocks)
        if self.recurrent is not None and known.state_slot != NO_SLOT:
            self.recurrent.adopt(known.state_slot)
        self.block_table = list(known.blocks)
        self.num_computed = len(known.blocks) * self._pool.block_size
        self._link, self._remembered = known.link, len(known.blocks)
        return self.num_computed

    def blocks_missing(self, rows: int) -> int:
        """Blocks that ``reserve(rows)`` would take from the pool."""
        return max(0, self._pool.blocks_for(self.num_computed + rows) - len(self.block_table))

    def reserve(self, rows: int, *, all_stay: bool = False) -> Reservation:
        """Open the transaction: make room for ``rows`` rows after the committed ones.

        ``all_stay`` promises that either all rows will be committed or none (a chunk of the prompt): recurrent layers
        then keep the state after the last row alone. Raises ``ValueError`` for no rows, ``RuntimeError`` for a second
        reservation and ``BlockPoolExhausted`` when a pool cannot serve; the state is then as before.
        """
        if rows < 1:
            raise ValueError(f"{rows} rows asked for; allowed: 1 or more")
        if self._open is not None:
            raise RuntimeError(f"{self._open.count} rows are reserved already; commit or release them first")
        fresh = self._pool.allocate(self.blocks_missing(rows))
        try:
            states = self.recurrent.reserve(rows, every_row=not all_stay) if self.recurrent is not None else None
        except BlockPoolExhausted:
            self._pool.free(fresh)
            raise
        self.block_table += fresh
        size = self._pool.block_size
        slots = tuple(
            self.block_table[position // size] * size + position % size
            for position in range(self.num_computed, self.num_computed + rows)
        )
        self._open = Reservation(self.num_computed, slots, states)
        return self._open

    def commit(self, rows: int, emitted: Sequence[int] = ()) -> None:
        """Close the transaction: the first ``rows`` reserved rows stay, ``emitted`` follows the history.

        Raises ``RuntimeError`` without a reservation and ``ValueError`` for more rows than it holds, for a row whose
        token is not in the history (a cache row without its token could never be replayed) and for a row after which
        no recurrent state was kept; nothing has changed then.
        """
        if self._open is None:
            raise RuntimeError("nothing is reserved; reserve before commit")
        if not 0 <= rows <= self._open.count:
            raise ValueError(f"{rows} rows to commit; allowed: 0 to the {self._open.count} that are reserved")
        if self.num_computed + rows > len(self.token_ids) + len(emitted):
            raise ValueError(
                f"{self.num_computed} + {rows} rows would be committed for {len(self.token_ids)} + {len(emitted)} ids"
            )
        states = self._open.states
        if states is not None and rows and states.write[rows - 1] == NO_SLOT:
            raise ValueError(f"the state after row {rows} of {self._open.count} was not kept; commit all rows or none")
        closed, self._open = self._open, None
        self.num_computed += rows
        self.token_ids.extend(emitted)
        self._remember_full_blocks(closed)
        if self.recurrent is not None:
            self.recurrent.commit(rows)
        self._trim()

    def release(self) -> None:
        """Free everything; an open reservation is dropped. The history stays, so the sequence can start again."""
        self._open = None
        self.num_computed = 0
        self._link, self._remembered = ROOT, 0
        if self.recurrent is not None:
            self.recurrent.release()
        self._trim()

    def _remember_full_blocks(self, closed: Reservation) -> None:
        if self._prefix_index is None:
            return
        size = self._pool.block_size
        for index in range(self._remembered, self.num_computed // size):
            tokens = self.token_ids[index * size : (index + 1) * size]
            last_row = (index + 1) * size - 1 - closed.start
            state = closed.states.write[last_row] if closed.states is not None else NO_SLOT
            self._link = self._prefix_index.remember(self._link, tokens, self.block_table[index], state)
            self._remembered = index + 1

    def _trim(self) -> None:
        keep = self._pool.blocks_for(self.num_computed)
        surplus = self.block_table[keep:]
        del self.block_table[keep:]
        self._pool.free(surplus)
