"""Which recurrent states a sequence holds: integers only.

A slot holds the state after one token, of every recurrent layer (convolution window and matrix together). Slots are
written once and then only read: a round writes the state after each of its rows to a slot of its own, and committing
k rows means to go on from the k-th. Nothing is ever rolled back, because nothing was overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.state.blocks import NULL_BLOCK, BlockPool

FRESH = NULL_BLOCK  # holds zeros and is never handed out: a sequence that has begun nothing reads it
NO_SLOT = -1  # the state behind this row is not kept


@dataclass(frozen=True, slots=True)
class StateRows:
    """Where a forward reads the state before its rows, and where it leaves the state after each of them."""

    read: int
    write: tuple[int, ...]

    def first(self, rows: int) -> StateRows:
        """The first ``rows`` rows."""
        return StateRows(self.read, self.write[:rows])


class RecurrentSlots:
    """The slots of one sequence: the state it stands at, and those of the rows that are reserved."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.current = FRESH
        self._open: StateRows | None = None

    def reserve(self, rows: int, every_row: bool) -> StateRows:
        """Slots for the states after ``rows`` rows: after every one of them, or after the last one alone."""
        fresh = self._pool.allocate(rows if every_row else 1)
        self._open = StateRows(self.current, (*[NO_SLOT] * (rows - len(fresh)), *fresh))
        return self._open

    def commit(self, rows: int) -> None:
        """Go on from the state after the ``rows``-th reserved row, which was kept; with 0, stay where it was."""
        if self._open is None:
            raise RuntimeError("no state is reserved; reserve before commit")
        target = self._open.write[rows - 1] if rows else self.current
        dropped = [slot for slot in (self.current, *self._open.write) if slot not in (FRESH, NO_SLOT, target)]
        self.current, self._open = target, None
        self._pool.free(dropped)

    def adopt(self, slot: int) -> None:
        """Start from a state that another sequence left; that sequence, or the index, goes on owning it too."""
        self._pool.share([slot])
        self.current = slot

    def release(self) -> None:
        """Free every slot; the next reservation starts from zeros."""
        reserved = self._open.write if self._open is not None else ()
        self._pool.free([slot for slot in (self.current, *reserved) if slot not in (FRESH, NO_SLOT)])
        self.current, self._open = FRESH, None
