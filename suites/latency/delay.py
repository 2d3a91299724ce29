"""A planted delay of so many per cent in every round, to see whether a verdict finds it. A study's tool, not a defect.

``SM70_PLANT_DELAY=3`` makes each round last 3 % longer than it did, by spinning before its end is noted: a sleep would
be rounded up to the timer's grain. Prefill is left alone. A worker that was slowed down says so in ``unfit``, so its
times enter no evidence by mistake.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = "SM70_PLANT_DELAY"
MOST_PERCENT = 100.0


def asked_for(environ: Mapping[str, str]) -> float:
    """Per cent to delay by, 0 without the variable. ValueError for what is no share of a round."""
    text = environ.get(VARIABLE, "") or "0"
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= MOST_PERCENT:
        raise ValueError(f"{VARIABLE} is {text!r}; allowed: per cent from 0 to {MOST_PERCENT:g}")
    return percent


class Stretch:
    """Notes when a step began, and holds it back at its end until it lasted ``share`` longer."""

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self._clock = clock
        self._began = clock()

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()

    def hold(self) -> None:
        """Spin for ``share`` of the time since the step began."""
        now = self._clock()
        until = now + self._share * (now - self._began)
        while self._clock() < until:
            pass


def plant(percent: float) -> None:
    """Stretch every round of every engine of this process, for the rest of its life."""
    loop: Any = importlib.import_module("engine.llm")  # late: the worker answers --list without loading torch
    stretch = Stretch(percent / 100)
    step, commit = loop.LLM.step, loop.commit

    def slow_step(self: Any) -> None:
        stretch.begin()
        step(self)

    def slow_commit(sequence: Any, *arguments: Any) -> Any:
        first = sequence.num_emitted == 0
        committed = commit(sequence, *arguments)
        if not first:
            stretch.hold()
        return committed

    loop.LLM.step, loop.commit = slow_step, slow_commit
