from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.steps.draft import LookupSettings, Match, draft, find_match


def slow_match(history: list[int], width: int, lookup: LookupSettings) -> Match | None:
    """The definition, one end position after the other."""
    last, best = len(history) - 1, None
    for end in range(last):
        length = 0
        while length < lookup.max_match and length <= end and history[end - length] == history[last - length]:
            length += 1
        if length >= lookup.min_match and (best is None or length >= best.length):
            best = Match(length, tuple(history[end + 1 : end + 1 + width]))
    return best


@given(
    history=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    width=st.integers(1, 8),
    low=st.integers(1, 4),
    more=st.integers(0, 6),
)
def test_finds_the_longest_then_the_most_recent(history: list[int], width: int, low: int, more: int) -> None:
    lookup = LookupSettings(low, low + more)
    assert find_match(array("i", history), width, lookup) == slow_match(history, width, lookup)


def test_worked_by_hand() -> None:
    history = array("i", [5, 1, 2, 3, 9, 8, 1, 2, 3])
    assert find_match(history, 3, LookupSettings(2, 12)) == Match(3, (9, 8, 1))
    assert find_match(history, 3, LookupSettings(4, 12)) is None
    # A period may overlap the end; what lies after the match is all that there is.
    assert find_match(array("i", [7, 7, 7, 7]), 5, LookupSettings(1, 2)) == Match(2, (7,))


def test_a_lookup_is_a_point_mass_on_each_token() -> None:
    proposal = draft(array("i", [1, 2, 3, 4, 1, 2]), 2, LookupSettings(2, 12))
    assert proposal.token_ids == (3, 4)
    assert [law.probability(token) for token, law in zip((3, 4), proposal.draft_laws, strict=True)] == [1.0, 1.0]
    assert [law.probability(9) for law in proposal.draft_laws] == [0.0, 0.0]


def test_a_match_is_trusted_for_as_many_tokens_as_it_is_long() -> None:
    history = array("i", [1, 2, 9, 9, 9, 8, 1, 2])
    assert draft(history, 7, LookupSettings(1, 12)).token_ids == (9, 9)
    assert draft(history, 1, LookupSettings(1, 12)).token_ids == (9,)


@pytest.mark.parametrize(("width", "lookup"), [(0, LookupSettings(1, 2)), (-1, LookupSettings(1, 2)), (4, None)])
def test_nothing_is_drafted_without_room_or_lookup(width: int, lookup: LookupSettings | None) -> None:
    assert draft(array("i", [1, 1, 1]), width, lookup).token_ids == ()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="matches of 0 to 3 tokens"):
        LookupSettings(0, 3)
