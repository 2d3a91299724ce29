"""The waits of a worker that took turns with another: checked, and taken out of its times. Pure.

A worker prints when it waited for its turn, (begin, end) in the seconds of its own stamps. What the other side did
meanwhile is no part of this side's rounds: a moment's time less all waits before it is the time of a clock that stands
while the other side runs.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from harness.ab.errors import RepeatError


class Waits:
    """All waits of one arm of one process, in order. No waits: the process ran alone."""

    def __init__(self, spans: Sequence[tuple[float, float]], who: str, steps: int = 1) -> None:
        """``steps`` are made in a turn. ``RepeatError`` for spans that overlap, run backwards or are no numbers."""
        edges = [edge for span in spans for edge in span]
        if not all(map(math.isfinite, edges)) or any(later < sooner for sooner, later in itertools.pairwise(edges)):
            raise RepeatError(f"{who}: its waits for its turn are no stretches of time one after the other")
        self._who, self._steps = who, steps
        self._begins = [begin for begin, _ in spans]
        self._ends = [end for _, end in spans]
        self._waited = [0.0, *itertools.accumulate(end - begin for begin, end in spans)]

    def __len__(self) -> int:
        return len(self._begins)

    def left_out(self, moment: float) -> float:
        """``moment`` on the clock that stands during waits."""
        before = bisect_right(self._ends, moment)
        if before < len(self) and self._begins[before] < moment:
            raise RepeatError(f"{self._who}: something happened at {moment!r} s, while the other side had its turn")
        return moment - self._waited[before]

    def check_rounds(self, at: Sequence[float], prompt: str) -> None:
        """As long as turns were taken, no more than ``steps`` rounds lie between two: ``at`` are the rounds' ends."""
        for first, (start, end) in enumerate(zip(at, at[self._steps :], strict=False), 1):
            within = bisect_left(self._begins, end) - bisect_left(self._begins, start)
            if len(self) and start < self._begins[-1] and not within:
                missing = f"no turn was handed on in {self._steps} rounds from round {first} on"
                raise RepeatError(f"{self._who}: prompt {prompt!r}: {missing}")
