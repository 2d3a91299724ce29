"""Two workers of one pair take turns, two steps at a time: a byte that goes back and forth is the right to run.

Both are alive together, on the same cores, and only one of them runs at a time: before every second step this process
hands the turn to the other and waits until it comes back. What a neighbour takes from the machine for seconds it takes
from both sides alike, and the ratio of two rounds that ran next to each other hardly feels it. The engine knows nothing
of this. Two steps and not one, because on a busy core the scheduler falls into step with single ones: the neighbour
then always runs before the same side, whose rounds find cold caches.

Waits are noted as (begin, end) in seconds of the clock that stamps tokens; whoever reads the stamps takes the waits
out. Work that is queued on a GPU ends inside the turn it belongs to: the device is waited for before the turn is handed
on. A closed pipe means that the other side has ended, or died: this one goes on alone.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

STEPS = 2
_TURN = b"t"


class Turns:
    """One side's end of the two pipes, and what it has waited."""

    def __init__(self, come: int, go: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """The turn comes through descriptor ``come`` and is handed on through ``go``; both are ours to close."""
        for descriptor in (come, go):
            os.set_inheritable(descriptor, False)  # a child that held an end would hide our death from the other side
        self._come, self._go = come, go
        self._clock = clock
        self._mine = False
        self._steps = 0
        self.waits: list[tuple[float, float]] = []
        self.alone = 0
        """Steps made after the other side had ended."""

    def next(self) -> None:
        """Before a step: after ``STEPS`` of them hand the turn on and wait until it is ours again."""
        if self.alone:
            self.alone += 1
            return
        self._steps += 1
        if self._mine and self._steps <= STEPS:
            return
        self._steps = 1
        began = self._clock()
        here = self._exchange()
        self.waits.append((began, self._clock()))
        self.alone += not here

    def leave(self) -> None:
        """After the last step: the other side makes its own last step before this process goes about its end."""
        if not self.alone:
            self._exchange()
        os.close(self._come)
        os.close(self._go)

    def _exchange(self) -> bool:
        """Hand on and wait; whether the other side is still there."""
        if self._mine:
            try:
                os.write(self._go, _TURN)
            except BrokenPipeError:
                return False
        self._mine = bool(os.read(self._come, 1))
        return self._mine


def parse(text: str) -> tuple[int, int]:
    """``IN,OUT`` of the command line as two descriptors. ValueError for anything else."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--turns {text}: give two file descriptors, IN,OUT")
    return int(parts[0]), int(parts[1])


def plant(turns: Turns) -> None:
    """Every step of every engine of this process waits for its turn, for the rest of its life."""
    loop: Any = importlib.import_module("engine.llm")  # late: the worker answers --list without loading torch
    step = loop.LLM.step

    cuda: Any = importlib.import_module("torch").cuda

    def step_in_turn(self: Any) -> None:
        if cuda.is_initialized():
            cuda.synchronize()
        turns.next()
        step(self)

    loop.LLM.step = step_in_turn
