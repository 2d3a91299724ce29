"""Cases that end in every way a case can end. ``FIXTURE_FAULT=crash`` kills the process in the middle."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

FAULT = os.environ.get("FIXTURE_FAULT", "")


def test_before() -> None:
    pass


def test_fails() -> None:
    assert FAULT == "none", "one is not two"


def test_skips() -> None:
    pytest.skip("not today")


@pytest.mark.xfail(reason="known", strict=True)
def test_xfails() -> None:
    raise AssertionError


@pytest.fixture
def bad_setup() -> None:
    raise RuntimeError("setup broke")


@pytest.fixture
def bad_teardown() -> Iterator[None]:
    yield
    raise RuntimeError("teardown broke")


def test_setup_error(bad_setup: None) -> None:
    pass


def test_teardown_error(bad_teardown: None) -> None:
    pass


def test_fails_twice(bad_teardown: None) -> None:
    raise AssertionError("call broke")


def test_open(record: Any) -> None:
    record.metric("before_the_end", 1, "1")
    if FAULT == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAULT == "hang":
        time.sleep(60)


def test_after() -> None:
    pass
