"""Repeats are measured once a session and shared by the cases that look at them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest

from suites.latency.arms import load_arms
from suites.latency.repeats import Repeat, run_once
from suites.recording import Record

WARM_UPS, REPEATS = 1, 3


@pytest.fixture
def model(native_library: str, record: Record) -> str:
    """Path of the model, or NOT_RUN with the reason: no model here, or no package that reads one."""
    try:
        from engine.config import read_environment
        from engine.model.weights_gguf import default_model_path

        return str(read_environment(os.environ).model or default_model_path())
    except (ModuleNotFoundError, ValueError) as missing:
        record.not_run(str(missing))


@functools.cache
def _measure(arm: str) -> tuple[Repeat, ...]:
    return tuple(run_once(load_arms()[arm]) for _ in range(WARM_UPS + REPEATS))


@pytest.fixture
def repeats(model: str) -> Callable[[str], tuple[Repeat, ...]]:
    """``repeats(arm name)`` -> one warm-up and three repeats."""
    return _measure
