"""Interleaved timing for the sampling benchmark, and what the times amount to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.model.graphs import collector_held_off

Work = Callable[[torch.Tensor], object]
"""One arm: takes logits that it may write to."""

BOOTSTRAP = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of the medians of two arms, with a 95 % bootstrap interval over the rounds both were timed in."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Rounds are resampled in pairs, so that what disturbed a round disturbs both arms."""
    top, bottom = np.array(numerator), np.array(denominator)
    picks = np.random.default_rng(0).integers(0, len(top), size=(BOOTSTRAP, len(top)))
    ratios = np.median(top[picks], axis=1) / np.median(bottom[picks], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Ratio(statistics.median(numerator) / statistics.median(denominator), float(low), float(high))


class HostTimer:
    """Microseconds per call on the CPU, on a fresh copy of the logits that is made before the clock starts.

    ``clock``: seconds; ``time.thread_time`` leaves out what other processes took of the core, and sees one thread only.
    """

    modes = ("call",)

    def __init__(
        self, source: torch.Tensor, arms: Mapping[str, Work], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._source, self._arms, self._clock = source, arms, clock
        self._work = source.clone()

    def measure(self, arm: str, mode: str) -> float:
        """One call of ``arm``."""
        self._work.copy_(self._source)
        started = self._clock()
        self._arms[arm](self._work)
        return (self._clock() - started) * 1e6


class DeviceTimer:
    """Microseconds per call on a GPU between two events around a run over several buffers.

    ``call``: the calls as a caller makes them, launches included; the stream is empty when they start.
    ``graph``: the same calls as one captured graph, so the device's own time.
    ``host``: what the caller's thread spends on a call, from the clock of the host; the device still works behind it.
    Buffers are refilled before the clock starts and together exceed the cache where the logits are large.
    """

    modes = ("call", "graph", "host")

    def __init__(self, source: torch.Tensor, arms: Mapping[str, Work], captured: Sequence[str], buffers: int) -> None:
        self._source, self._arms = source, arms
        self._work = [torch.empty_like(source) for _ in range(buffers)]
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._refill()
        for arm in arms:
            for buffer in self._work:
                arms[arm](buffer)  # loads kernels, binds and warms the allocator, outside of any capture
        self._refill()
        for arm in captured:
            graph = torch.cuda.CUDAGraph()
            with collector_held_off(), torch.cuda.graph(graph):
                for buffer in self._work:
                    arms[arm](buffer)
            self._graphs[arm] = graph

    def has(self, arm: str, mode: str) -> bool:
        """Whether ``arm`` can be measured that way."""
        return mode != "graph" or arm in self._graphs

    def measure(self, arm: str, mode: str) -> float:
        """Mean over the buffers of one run of ``arm``, microseconds."""
        self._refill()
        torch.cuda.synchronize()
        if mode == "host":
            started = time.perf_counter()
            for buffer in self._work:
                self._arms[arm](buffer)
            return (time.perf_counter() - started) * 1e6 / len(self._work)
        first, last = _event(), _event()
        first.record()
        if mode == "graph":
            self._graphs[arm].replay()
        else:
            for buffer in self._work:
                self._arms[arm](buffer)
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3 / len(self._work)

    def _refill(self) -> None:
        for buffer in self._work:
            buffer.copy_(self._source)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def interleave(timer: HostTimer | DeviceTimer, arms: Sequence[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples by mode and arm: every round times every arm once, forwards and backwards in turn."""
    plan = [
        (mode, arm)
        for mode in timer.modes
        for arm in arms
        if not isinstance(timer, DeviceTimer) or timer.has(arm, mode)
    ]
    samples: dict[str, dict[str, list[float]]] = {mode: {} for mode in timer.modes}
    for turn in range(rounds + 1):
        for mode, arm in plan if turn % 2 else reversed(plan):
            microseconds = timer.measure(arm, mode)
            if turn > 0:  # the first round warms up
                samples[mode].setdefault(arm, []).append(microseconds)
    return samples
