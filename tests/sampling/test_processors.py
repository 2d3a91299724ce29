"""Rules that mean nothing are refused before any work, with the value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.errors import InputError
from engine.sampling.processors import logprobs
from engine.sampling.rules import LogitsRules


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"repetition_penalty": 0.0}, "repetition penalty is 0.0"),
        ({"repetition_penalty": math.nan}, "repetition penalty is nan"),
        ({"presence_penalty": 2.5}, "presence penalty is 2.5; allowed: -2.0 to 2.0"),
        ({"frequency_penalty": math.nan}, "frequency penalty is nan"),
        ({"min_p": -0.1}, "min-p is -0.1"),
        ({"min_p": 1.5}, "min-p is 1.5"),
        ({"logit_bias": {7: 101.0}}, "logit bias of token 7 is 101.0"),
        ({"allowed_ids": frozenset()}, "leave no token"),
        ({"allowed_ids": frozenset({1}), "banned_ids": frozenset({1})}, "leave no token"),
    ],
)
def test_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LogitsRules(**asked)


@pytest.mark.parametrize(
    "rules",
    [
        LogitsRules(logit_bias={10: 1.0}),
        LogitsRules(allowed_ids=frozenset({3, 10})),
        LogitsRules(banned_ids=frozenset({-1})),
    ],
)
def test_ids_beyond_the_vocabulary(rules: LogitsRules) -> None:
    with pytest.raises(InputError, match=r"name token (10|-1); allowed: 0 to 9"):
        rules.check_vocabulary(10)


def test_ids_of_the_vocabulary() -> None:
    LogitsRules(logit_bias={9: 1.0}, allowed_ids=frozenset({0}), banned_ids=frozenset({5})).check_vocabulary(10)


@pytest.mark.parametrize(("token", "top"), [(-1, 0), (4, 0), (0, 5), (0, -1)])
def test_logprobs_of_what_is_not_there(token: int, top: int) -> None:
    with pytest.raises(ValueError, match=f"token {token}, top {top}"):
        logprobs(torch.zeros(4), token, top)
