"""The check for profilers sees what it must see, in a process like the one that is timed."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_debug_or_sanitized_library_is_seen(tmp_path: Path) -> None:
    def said(**flags: str) -> list[str]:
        (tmp_path / "build.json").write_text(json.dumps({"flags": flags}))
        return fitness.library_reasons(tmp_path / "libsm70.so")

    assert said(fast="-std=c++17 -O3") == []
    assert said(slow="-O0 -g") == ["the native library is built with -O0 (slow)"]
    assert said(checked="-O2 -fsanitize=address") == ["the native library is built with -fsanitize=address (checked)"]
    assert said(bare="-std=c++17") == ["the native library is built without optimisation (bare)"]


def test_whoever_watches_the_rounds_is_seen() -> None:
    class Engine:
        def __init__(self) -> None:
            self.observer: object = None
            self.runner = SimpleNamespace()

    engine: Any = Engine()
    assert fitness.engine_reasons(engine) == []
    engine.observer = "a capture"
    engine.runner.forward = engine.step = print
    assert len(fitness.engine_reasons(engine)) == 3


def test_the_torch_profiler_is_seen() -> None:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert "the torch profiler is recording" in fitness.unfit_reasons()
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert "torch anomaly detection is on" in fitness.unfit_reasons()


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
