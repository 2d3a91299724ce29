from __future__ import annotations

import numpy as np
import pytest

from engine.steps.draft import Match
from engine.steps.fusion import FusionSettings, fuse
from engine.steps.records import Proposal, TokenLaw

SETTINGS = FusionSettings(weak=4, strong=6, agree=1, tail=4)


def drafted(*token_ids: int) -> Proposal:
    """Tokens below 4, each drawn from the same uneven law."""
    one = TokenLaw(np.arange(4), np.array([0.4, 0.3, 0.2, 0.1]))
    return Proposal(token_ids, (one,) * len(token_ids))


def points(proposal: Proposal) -> list[bool]:
    return [len(law.token_ids) == 1 for law in proposal.draft_laws]


@pytest.mark.parametrize(
    ("length", "looked_up", "token_ids", "point_mass"),
    [
        # Strong: by the history alone, all of it.
        (6, (3, 3, 3), (3, 3, 3), [True, True, True]),
        # Weak and the first token agrees: that token keeps its law.
        (4, (0, 3, 3), (0, 3, 3), [False, True, True]),
        # Weak and the first token disagrees: nothing is taken.
        (4, (3, 1, 2), (0, 1, 2), [False, False, False]),
        # Too short for anything.
        (3, (0, 1, 2, 3), (0, 1, 2), [False, False, False]),
        # Shorter than the block: the rest is the drafted one's.
        (6, (3,), (3, 1, 2), [True, False, False]),
        # Longer: the tail is a point mass.
        (6, (3, 3, 3, 3, 3), (3, 3, 3, 3, 3), [True] * 5),
        (4, (0, 1, 2, 3), (0, 1, 2, 3), [False, True, True, True]),
    ],
)
def test_what_is_taken_and_with_which_law(
    length: int, looked_up: tuple[int, ...], token_ids: tuple[int, ...], point_mass: list[bool]
) -> None:
    fused = fuse(drafted(0, 1, 2), Match(length, looked_up), SETTINGS)
    assert fused.token_ids == token_ids
    assert points(fused) == point_mass


def test_a_short_match_that_agrees_throughout_gives_its_tail_only() -> None:
    settings = FusionSettings(weak=6, strong=8, agree=1, tail=4)
    fused = fuse(drafted(0, 1), Match(5, (0, 1, 3, 3)), settings)
    assert fused.token_ids == (0, 1, 3, 3)
    assert points(fused) == [False, False, True, True]
    beginning = drafted(0, 1, 2)
    assert fuse(beginning, Match(5, (0, 3, 3, 3)), settings).token_ids == beginning.token_ids


def test_without_agreement_asked_for_a_weak_match_is_the_histories_choice() -> None:
    fused = fuse(drafted(0, 1), Match(4, (3, 3)), FusionSettings(weak=4, strong=6, agree=0))
    assert points(fused) == [True, True]


def test_no_match_changes_nothing() -> None:
    proposal = drafted(0, 1)
    assert fuse(proposal, None, SETTINGS) is proposal


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="weak 7, strong 6"):
        FusionSettings(weak=7, strong=6)
