"""Where two values first differ, told with both."""

from __future__ import annotations

from typing import Any

import pytest

from harness.first_difference import first_difference
from harness.verdict import Difference


@pytest.mark.parametrize(
    ("stated", "found", "says"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"a": 1}, {"a": 2}, "a is 1, and 2 follows"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b is 1, and absent follows"),
        ({"rows": [{"node": "x", "n": 1}]}, {"rows": [{"node": "x", "n": 2}]}, "rows[x].n is 1, and 2 follows"),
        ([1, 2], [1], "[1] is 2, and absent follows"),
        (1, 1.0, "the value is 1, and 1.0 follows"),
        (True, 1, "the value is True, and 1 follows"),
        ("a" * 200, "b", f"the value is '{'a' * 119}…, and 'b' follows"),
    ],
)
def test_the_first_place_and_both_values(stated: Any, found: Any, says: str) -> None:
    assert first_difference(stated, found) == says


def test_records_are_told_by_their_names() -> None:
    one, other = (Difference("cpu.model", "Xeon", head, True, "another machine") for head in ("EPYC", "Xeon"))
    assert first_difference([one], [other]) == "[cpu.model].head is 'EPYC', and 'Xeon' follows"
