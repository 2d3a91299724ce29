"""Ways in which answers that are worked out ahead of reject go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suites.defects import Defect

_CASES = "suites/spec_decode/test_read_ahead.py"


def _of_the_whole_row(original: Callable[..., Any]) -> Callable[..., Any]:
    def law(self: Any, row: int, logits: Any, plan: Any, answers: list[int], greedy: bool) -> Any:
        from engine.steps.read_ahead import _RECOVERED, _TARGET

        spoiled = list(answers)
        spoiled[_RECOVERED] = answers[_TARGET]
        return original(self, row, logits, plan, spoiled, greedy)

    return law


def _of_the_next_row(original: Callable[..., Any]) -> Callable[..., Any]:
    def law(self: Any, row: int, logits: Any, plan: Any, answers: list[int], greedy: bool) -> Any:
        return original(self, (row + 1) % len(logits), logits, plan, answers, greedy)

    return law


DEFECTS = (
    Defect(
        "read-ahead-recovers-from-the-whole-row",
        "the token that replaces a draft is drawn as the bonus token is: the draft is not taken out",
        "spec_decode",
        "engine.steps.read_ahead:ReadAhead",
        "_law",
        _of_the_whole_row,
        (f"{_CASES}::test_reject_decides_alike[1]",),
    ),
    Defect(
        "read-ahead-of-the-next-row",
        "a row is judged by the settings, draft and random numbers of the one after it",
        "spec_decode",
        "engine.steps.read_ahead:ReadAhead",
        "_law",
        _of_the_next_row,
        (f"{_CASES}::test_other_questions_are_asked_of_the_row",),
    ),
)
