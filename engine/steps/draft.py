"""Drafting: tokens that may follow, guessed from the request's own history."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from engine.steps.records import PointLaw, Proposal


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


def draft(history: array[int], width: int, lookup: LookupSettings | None) -> Proposal:
    """Propose up to ``width`` tokens behind ``history`` (which ends with the anchor).

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
