"""Lookup joined with a drafted block: which tokens come from where, and which law each is recorded with.

The rule that keeps the output's law right: the law recorded for position i may depend on the history and on the tokens
before i, never on the token at i or after it. A weak match is taken *because* the first ``agree`` drafted tokens
agree with it, so those tokens chose the lookup and keep the laws that they were drawn from; only what follows is a
point mass. A strong match is taken by the history alone, so all of it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.steps.draft import Match
from engine.steps.records import DraftLaw, PointLaw, Proposal


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """Match lengths and agreement, in tokens.

    A match of ``strong`` tokens is taken by itself; one of ``weak`` is taken when the first ``agree`` drafted tokens
    agree with it; one of ``tail`` may extend a block that it agrees with throughout.
    """

    weak: int = 6
    strong: int = 6
    agree: int = 0
    tail: int = 4

    def __post_init__(self) -> None:
        if not (1 <= self.weak <= self.strong and self.tail >= 1 and self.agree >= 0):
            raise ValueError(
                f"matches weak {self.weak}, strong {self.strong}, tail {self.tail}, agree {self.agree}; "
                "allowed: 1 <= weak <= strong, tail 1 or more, agree 0 or more"
            )


def fuse(drafted: Proposal, match: Match | None, settings: FusionSettings) -> Proposal:
    """``drafted`` with the tokens of ``match`` where it is taken; wider than ``drafted`` where its end is taken too.

    ``match.continuation`` may be longer than the drafted block: what lies beyond is the tail.
    """
    if match is None:
        return drafted
    block = len(drafted.token_ids)
    looked_up = match.continuation
    agreement = _agreement(drafted.token_ids, looked_up)
    strong = match.length >= settings.strong
    head = strong or (match.length >= settings.weak and agreement >= settings.agree)
    tail = match.length >= settings.tail and (head or agreement >= block)
    own = 0 if strong else settings.agree  # positions that chose the lookup keep their own laws
    token_ids: list[int] = list(drafted.token_ids)
    laws: list[DraftLaw] = list(drafted.draft_laws)
    if head:
        for position in range(own, min(block, len(looked_up))):
            token_ids[position], laws[position] = looked_up[position], PointLaw(looked_up[position])
    if tail:
        token_ids += looked_up[block:]
        laws += map(PointLaw, looked_up[block:])
    return Proposal(tuple(token_ids), tuple(laws))


def _agreement(drafted: tuple[int, ...], looked_up: tuple[int, ...]) -> int:
    """Leading positions at which both say the same."""
    count = 0
    for ours, theirs in zip(drafted, looked_up, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
