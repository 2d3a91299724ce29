"""The exact law of a random process, from the process itself: every branch that its random numbers can take, weighed.

The process is a black box that asks for numbers by position and purpose. Each number's interval (0, 1) is cut where the
process changes its behaviour, to the last of the generator's 52 bits, and the pieces' lengths are multiplied along the
way. A number that is asked for a second time is cut further, so numbers that two decisions share are weighed rightly
too: noise that must not be shared shows as a law that is not the target's.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.sampling.random import UNIFORM_BITS, Purpose
from engine.steps.records import unit_interval

Key = tuple[int, Purpose]
OutcomeT = TypeVar("OutcomeT", bound=Hashable)

ONE = 1 << UNIFORM_BITS
# A hinted edge is looked at from this far on both sides, 2**-48: rounding moves an edge by less.
_NEAR = 16


@dataclass(frozen=True, slots=True)
class _Span:
    """The numbers ``low`` to ``high`` (exclusive, in units of 2**-52) answer the first ``asked`` questions alike."""

    low: int
    high: int
    asked: int

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2


class _AskedError(Exception):
    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.key = key


class Branch:
    """The random numbers of one branch, as `Noise`. A process notes what no question would show."""

    def __init__(self, spans: Mapping[Key, _Span]) -> None:
        self._spans = spans
        self._asked: Counter[Key] = Counter()
        self._edges: dict[Key, tuple[float, ...]] = {}
        self.notes: list[Hashable] = []

    def expect(self, position: int, purpose: Purpose, edges: tuple[float, ...]) -> None:
        """Where the answer to a question may change a decision. It only saves time: other edges are found as well."""
        self._edges[position, purpose] = edges

    def expected(self, key: Key) -> tuple[float, ...]:
        """The edges told for a number, () for none."""
        return self._edges.get(key, ())

    def note(self, what: Hashable) -> None:
        """Tell two behaviours apart whose next question is the same."""
        self.notes.append(what)

    def bits(self, position: int, purpose: Purpose) -> int:
        """See `Noise`."""
        key = (position, purpose)
        self._asked[key] += 1
        span = self._spans.get(key)
        if span is None or self._asked[key] > span.asked:
            raise _AskedError(key)
        return span.middle << (64 - UNIFORM_BITS)

    def uniform(self, position: int, purpose: Purpose) -> float:
        """See `Noise`."""
        return unit_interval(self.bits(position, purpose))


def exact_law(process: Callable[[Branch], OutcomeT]) -> dict[OutcomeT, float]:
    """Probability of every outcome of ``process``."""
    out: dict[OutcomeT, float] = defaultdict(float)

    def visit(spans: dict[Key, _Span], weight: float) -> None:
        seen = _look(process, spans)
        if seen.asked is None:
            assert seen.outcome is not None
            out[seen.outcome] += weight
            return
        key, span = seen.asked, spans.get(seen.asked, _Span(0, ONE, 0))

        def answer(number: int) -> Hashable:
            return _look(process, {**spans, key: _Span(number, number + 1, span.asked + 1)})

        for low, high in _pieces(answer, span.low, span.high, seen.edges):
            visit({**spans, key: _Span(low, high, span.asked + 1)}, weight * ((high - low) / (span.high - span.low)))

    visit({}, 1.0)
    return dict(out)


@dataclass(frozen=True, slots=True)
class _Seen(Generic[OutcomeT]):
    """What a process does with the numbers it is given: what it noted, then what it asks or how it ends."""

    notes: tuple[Hashable, ...]
    asked: Key | None
    outcome: OutcomeT | None
    edges: tuple[float, ...] = field(compare=False, default=())


def _look(process: Callable[[Branch], OutcomeT], spans: Mapping[Key, _Span]) -> _Seen[OutcomeT]:
    branch = Branch(spans)
    try:
        outcome = process(branch)
    except _AskedError as asked:
        return _Seen(tuple(branch.notes), asked.key, None, branch.expected(asked.key))
    return _Seen(tuple(branch.notes), None, outcome)


def _pieces(
    answer: Callable[[int], Hashable], low: int, high: int, hints: Sequence[float]
) -> Iterator[tuple[int, int]]:
    """Stretches of [low, high) with one answer each. Between two hints both ends are asked."""
    edges = sorted({low, high, *(edge for hint in hints if low < (edge := round(hint * ONE)) < high)})
    start, current = low, answer(low)
    for left, right in itertools.pairwise(edges):
        near = min(_NEAR, (right - left) // 4)
        known = left if left == low else left + near
        last = right - 1 - near
        if left != low and answer(known) != current:
            yield start, left
            start, current = left, answer(known)
        at, ending = known, answer(last)
        while ending != current:
            edge = _first_other(answer, current, at, last)
            yield start, edge
            start, at, current = edge, edge, answer(edge)
    yield start, high


def _first_other(answer: Callable[[int], Hashable], current: Hashable, same: int, other: int) -> int:
    """By halving: a number in (same, other] whose answer is not ``current`` while the one below has it."""
    while other - same > 1:
        middle = (same + other) // 2
        if answer(middle) == current:
            same = middle
        else:
            other = middle
    return other
