from __future__ import annotations

import pytest

from engine.training.acceptance import Acceptance


def test_emitted_a_round_is_of_all_tokens_over_all_rounds() -> None:
    assert Acceptance((30, 10), (10, 10), (True, True)).emitted_per_round == 2.0


def test_an_interval_of_equal_prompts_is_a_point() -> None:
    assert Acceptance((30,) * 8, (10,) * 8, (True,) * 8).interval() == (3.0, 3.0)


def test_an_interval_covers_what_prompts_differ_by() -> None:
    low, high = Acceptance((20, 40) * 32, (10, 10) * 32, (True, False) * 32).interval()
    # The mean of 64 prompts of 2 or 4 has a standard error of 1 / 8.
    assert low == pytest.approx(3 - 1.96 / 8, abs=0.05)
    assert high == pytest.approx(3 + 1.96 / 8, abs=0.05)


def test_a_fall_is_paired_by_prompt() -> None:
    intact = Acceptance((20, 40) * 32, (10, 10) * 32, (True, False) * 32)
    fall, low, high = intact.fall_to(Acceptance((19, 39) * 32, (10, 10) * 32, (True, False) * 32))
    assert (fall, low, high) == pytest.approx((0.1, 0.1, 0.1))


def test_other_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 prompts"):
        Acceptance((20, 40), (10, 10), (True, True)).fall_to(Acceptance((20,), (10,), (True,)))


def test_some_of_the_prompts() -> None:
    seen = Acceptance((30, 10, 20), (10, 10, 10), (True, False, True)).of(slice(1, None))
    assert (seen.tokens, seen.rounds, seen.stopped, seen.prompts) == (30, 20, 1, 2)
