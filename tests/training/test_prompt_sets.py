from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from engine.training import prompts
from engine.training.prompts import Topics

MODEL = Path(__file__).parents[2] / "models" / "quasar-tiny"


@pytest.mark.parametrize(("first", "second"), list(combinations(Topics, 2)))
def test_no_topic_and_no_question_is_in_two_sets(first: Topics, second: Topics) -> None:
    assert not set(first.names) & set(second.names)
    asked = [set(prompts.questions(1, which, partners=prompts.PARTNERS)) for which in (first, second)]
    assert not asked[0] & asked[1]


@pytest.mark.parametrize("which", list(prompts.FILES))
def test_the_files_beside_the_model_are_the_sets_of_the_recipe(which: Topics) -> None:
    assert (MODEL / prompts.FILES[which]).read_text(encoding="utf-8") == prompts.as_json(which)


def test_the_blind_set_is_large_enough_for_an_interval() -> None:
    blind = prompts.prompt_set(Topics.BLIND)
    assert len(set(blind.prompts)) == len(blind.prompts) >= 64
