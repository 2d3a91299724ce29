"""The check for profilers sees what it must see, in a process like the one that is timed."""

from __future__ import annotations

import sys
import threading

import pytest

from suites.latency import fitness
from suites.latency.repeats import run_worker

pytestmark = pytest.mark.group("unprofiled")


def test_a_plain_worker_is_fit() -> None:
    """Only what this machine itself attaches (a debugger of the whole tree) may be named."""
    assert run_worker(["--fitness"], {"PYTHONTRACEMALLOC": ""}) == []


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PYTHONDEVMODE", "1", "development mode"),
        ("PYTHONTRACEMALLOC", "1", "PYTHONTRACEMALLOC=1"),
        ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING=1"),
        ("NSYS_PROFILING_SESSION_ID", "7", "NSYS_PROFILING_SESSION_ID=7"),
    ],
)
def test_a_worker_that_is_watched_says_so(variable: str, value: str, said: str) -> None:
    reasons = run_worker(["--fitness"], {variable: value})
    assert any(said in reason for reason in reasons), reasons


def test_hooks_are_seen() -> None:
    def hook(*_: object) -> None:
        return None

    before = sys.getprofile(), threading.getprofile()
    try:
        sys.setprofile(hook)
        threading.setprofile(hook)
        reasons = fitness.unfit_reasons()
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    assert [name for name in ("sys.setprofile", "threading.setprofile") if any(name in r for r in reasons)] == [
        "sys.setprofile",
        "threading.setprofile",
    ]
