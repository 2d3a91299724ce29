"""Drafting: tokens that may follow. What a drafter is, and the one that guesses from the request's own history."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.state.sequence import Reservation, SequenceState
from engine.steps.records import Fault, Noise, PointLaw, Proposal


@dataclass(frozen=True, slots=True, eq=False)
class DraftItem:
    """One sequence that decodes, its anchor last: up to ``width`` drafts are wanted, 0 for plain decode."""

    sequence: SequenceState
    width: int
    temperature: float
    noise: Noise


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A proposal, and the rows that the drafter opened for it; without any, verification opens its own."""

    proposal: Proposal
    reservation: Reservation | None = None


class Drafter(Protocol):
    """Proposes for all sequences of a round together. The choice of K uses the history alone."""

    def draft(self, items: Sequence[DraftItem]) -> list[Drafted | Fault]:
        """One answer an item, in order; a fault where nothing may be drafted for a request at all."""


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Prompt lookup: the last ``min_match`` to ``max_match`` tokens must have occurred before."""

    min_match: int
    max_match: int

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"matches of {self.min_match} to {self.max_match} tokens; allowed: 1 <= min <= max")


@dataclass(frozen=True, slots=True)
class Match:
    """The best earlier occurrence of the history's end: ``length`` tokens that end just before ``continuation``."""

    length: int
    continuation: tuple[int, ...]


class LookupDrafter:
    """See `Drafter`: each sequence by itself, by `draft`."""

    def __init__(self, lookup: LookupSettings | None) -> None:
        self._lookup = lookup

    def draft(self, items: Sequence[DraftItem]) -> list[Drafted | Fault]:
        """Nothing is reserved and nothing can fail."""
        return [Drafted(draft(item.sequence.token_ids, item.width, self._lookup)) for item in items]


def draft(history: array[int], width: int, lookup: LookupSettings | None) -> Proposal:
    """Propose up to ``width`` tokens after ``history`` (which ends with the anchor).

    A match is trusted for as many tokens as it is long: a rejected row costs as much as an accepted one. The choice
    uses the history alone, so each looked-up token is a point mass. ``lookup`` None proposes nothing.
    """
    match = find_match(history, width, lookup) if lookup is not None and width > 0 else None
    if match is None:
        return Proposal()
    trusted = match.continuation[: match.length]
    return Proposal(trusted, tuple(PointLaw(token_id) for token_id in trusted))


def find_match(history: array[int], width: int, lookup: LookupSettings) -> Match | None:
    """The longest earlier occurrence of the history's end, the most recent one among equals; it may overlap the end.

    Longer than ``max_match`` counts as ``max_match``; shorter than ``min_match`` is no match.
    """
    tokens = np.array(history)
    last = len(tokens) - 1
    if last < lookup.min_match:
        return None
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    length = 1
    while len(ends) and length < lookup.max_match:
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[last - length]]
        if not len(longer):
            break
        ends = longer
        length += 1
    if not len(ends) or length < lookup.min_match:
        return None
    start = int(ends[-1]) + 1
    return Match(length, tuple(tokens[start : start + width].tolist()))
