from __future__ import annotations

import re
from typing import Any

import pytest

from engine.errors import InputError
from engine.request import Request, SamplingParams


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; allowed: 0 (greedy) or a finite number above 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -3}, "top-k is -3; allowed: 0 (off) or a whole number of candidates, 1 or more"),
        ({"top_p": 0.0}, "top-p is 0.0; allowed: above 0 (1e-30 at least), up to 1.0 (off)"),
        ({"top_p": 1.5}, "top-p is 1.5; allowed: above 0 (1e-30 at least), up to 1.0 (off)"),
        ({"top_p": float("nan")}, "top-p is nan"),
        ({"max_tokens": 0}, "max-tokens is 0; allowed: 1 or more"),
        ({"seed": -1}, "seed is -1; allowed: 0 to 9223372036854775807"),
    ],
)
def test_values_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        SamplingParams(**wrong)


def test_zero_temperature_is_greedy() -> None:
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.01).greedy


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=3)  # type: ignore[call-arg]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="the prompt has no tokens"):
        Request(0, (), SamplingParams(), seed=0, max_tokens=1, stop_token_ids=frozenset())
