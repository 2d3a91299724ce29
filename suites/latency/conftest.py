"""Repeats are measured once a session and shared by the cases that look at them.

Arms of one model share their processes: each repeat runs all of them, starting with another one each time, so that no
arm always comes after the same neighbour.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest

from suites.latency import gpus
from suites.latency.arms import groups, load_arms, runnable
from suites.latency.repeats import Repeat, waiting_workers
from suites.recording import Record

# Five, because four arms are judged together: against the ten repeats of an accepted baseline even the smallest of
# sixteen shares of 5 % can be reached (one of the 3003 orders, both ways: p = 0.0007), with three it cannot (0.007).
REPEATS = 5


@pytest.fixture
def model(native_library: str, record: Record) -> str:
    """Path of the model, or NOT_RUN with the reason: no model here, or no package that reads one."""
    try:
        from engine.config import read_environment
        from engine.model.weights_gguf import default_model_path

        return str(read_environment(os.environ).model or default_model_path())
    except (ModuleNotFoundError, ValueError) as missing:
        record.not_run(str(missing))


def _measure(arm: str) -> tuple[Repeat, ...]:
    here = runnable(load_arms(), gpus.count())
    group = next(group for group in groups(here) if arm in group)
    return _measure_group(group)[arm]


@functools.cache
def _measure_group(group: tuple[str, ...]) -> dict[str, tuple[Repeat, ...]]:
    turned = [(*group[number % len(group) :], *group[: number % len(group)]) for number in range(REPEATS)]
    # The first one brings the model's files into memory; one arm does that. A repeat warms its own process itself.
    with waiting_workers([group[:1], *turned]) as (warming, *workers):
        warming.measure()
        repeats = [worker.measure() for worker in workers]
    return {arm: tuple(repeat[arm] for repeat in repeats) for arm in group}


@pytest.fixture
def repeats(model: str) -> Callable[[str], tuple[Repeat, ...]]:
    """``repeats(arm name)`` -> the repeats of that arm, all of them after a warm-up."""
    return _measure
