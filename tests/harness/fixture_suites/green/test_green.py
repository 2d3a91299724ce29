"""Cases that pass, skip, and state exact numbers. ``FIXTURE_FAULT`` plants one fault in them."""

import os
from typing import Any

import pytest

FAULT = os.environ.get("FIXTURE_FAULT", "")


@pytest.mark.group("numbers")
@pytest.mark.parametrize("size", [1, 8, 64])
def test_sizes(record: Any, size: int) -> None:
    record.metric("registers", 32 + size + (FAULT == "metric" and size == 8), "register", better="lower")
    assert not (FAULT == "fail" and size == 64), "64 is wrong"


if FAULT != "vanish":

    def test_plain() -> None:
        assert FAULT != "skip" or pytest.skip("skipped by FIXTURE_FAULT")


def test_tokens(record: Any) -> None:
    ids = [[1, 2, 3, 2], [5, 7 if FAULT == "token" else 6]]
    record.tokens("greedy", ids, ["stop", "stop"], rounds=3, acceptance_histogram=[0, 2, 1])


def test_needs_a_gpu(record: Any) -> None:
    record.not_run("needs a CUDA device")
