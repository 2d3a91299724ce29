"""Rank 0 decides, the others follow: what rank 0 is about to compute, told to them as plain integers.

Scheduler, sampler and drafter exist on rank 0 alone, so no two ranks can ever disagree about a token. Each forward is
announced; the followers run the same forward over their own weights and caches, and meet rank 0 in its collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from engine.model.runner import ModelRunner, SequenceRows
from engine.parallel.group import Group
from engine.state.sequence import Reservation
from engine.state.slots import StateRows

_STOP = -1
_FIRST = 256  # integers of the first message: nearly every round fits, and waits for one message instead of two


@dataclass(frozen=True, slots=True)
class Announcement:
    """One forward, as `ModelRunner.forward` takes it."""

    batch: tuple[SequenceRows, ...]
    prefill: bool

    def integers(self) -> list[int]:
        """The announcement flat; `parse` is the way back."""
        flat = [int(self.prefill), len(self.batch)]
        for rows in self.batch:
            held = rows.reservation
            flat += [
                len(rows.token_ids),
                held.start,
                rows.num_logits,
                len(rows.block_table),
                int(held.states is not None),
            ]
            flat += [*rows.token_ids, *held.slot_mapping, *rows.block_table]
            if held.states is not None:
                flat += [held.states.read, *held.states.write]
        return flat


def parse(flat: Sequence[int]) -> Announcement:
    """The announcement in ``flat``. Raises ``ValueError`` for integers that are none."""
    numbers = iter(flat)
    prefill, count = _take(numbers, 2)
    batch = tuple(_rows(numbers) for _ in range(count))
    if next(numbers, None) is not None:
        raise ValueError(f"{len(flat)} integers are more than one announcement")
    return Announcement(batch, bool(prefill))


def _rows(numbers: Iterator[int]) -> SequenceRows:
    count, start, num_logits, blocks, recurrent = _take(numbers, 5)
    token_ids, slots, table = _take(numbers, count), _take(numbers, count), _take(numbers, blocks)
    states = StateRows(_take(numbers, 1)[0], _take(numbers, count)) if recurrent else None
    return SequenceRows(token_ids, Reservation(start, slots, states), table, num_logits)


def _take(numbers: Iterator[int], count: int) -> tuple[int, ...]:
    taken = tuple(islice(numbers, count))
    if len(taken) < count:
        raise ValueError(f"{count} integers expected, {len(taken)} are left: no whole announcement")
    return taken


class Leader:
    """Rank 0's side. Called by the runner before each forward."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def announce(self, batch: Sequence[SequenceRows], prefill: bool) -> None:
        """Tell the followers to run this forward too."""
        self.tell(Announcement(tuple(batch), prefill).integers())

    def tell(self, flat: Sequence[int]) -> None:
        """Send ``flat`` to where `hear` is called: in one message if it fits, what is left of it in a second one."""
        first = torch.zeros(_FIRST, dtype=torch.int64)
        head = torch.tensor([len(flat), *flat[: _FIRST - 1]], dtype=torch.int64)
        first[: len(head)] = head
        self._group.broadcast(first)
        if rest := flat[_FIRST - 1 :]:
            self._group.broadcast(torch.tensor(rest, dtype=torch.int64))

    def dismiss(self) -> None:
        """Tell the followers that there will be no more."""
        self._group.broadcast(torch.full((_FIRST,), _STOP, dtype=torch.int64))


def hear(group: Group) -> list[int] | None:
    """What rank 0 tells next; None once it has dismissed its followers."""
    first = torch.zeros(_FIRST, dtype=torch.int64)
    group.broadcast(first)
    size, *flat = first.tolist()
    if size == _STOP:
        return None
    if size > len(flat):
        rest = torch.zeros(size - len(flat), dtype=torch.int64)
        group.broadcast(rest)
        flat += rest.tolist()
    return flat[:size]


def follow(runner: ModelRunner, group: Group) -> int:
    """A follower's life: every forward that rank 0 announces, until it is dismissed; how many there were."""
    forwards = 0
    while (flat := hear(group)) is not None:
        announced = parse(flat)
        runner.forward(announced.batch, prefill=announced.prefill)
        forwards += 1
    return forwards
