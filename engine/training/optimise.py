"""One optimiser loop for every phase: it ends after its seconds (or steps), and its rate follows the clock."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from engine.training.steps import EagerSteps, GraphSteps, Inputs, Loss

_WARMUP = 0.03
_FLOOR = 0.02
_LOG_EVERY = 20


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase of training may spend, and how fast it moves."""

    name: str
    seconds: float
    rate: float
    weight_decay: float = 0.1
    max_steps: int | None = None

    def progress(self, elapsed: float, step: int) -> float:
        """How much of the phase is over, 0 to 1: by the clock or by the steps, whichever is further."""
        by_clock = elapsed / self.seconds
        return min(1.0, by_clock if self.max_steps is None else max(by_clock, step / self.max_steps))

    def factor(self, progress: float) -> float:
        """What the rate is multiplied by: a short rise, then half a cosine down to a floor."""
        if progress < _WARMUP:
            return max(progress, 1e-3) / _WARMUP
        fall = (progress - _WARMUP) / (1 - _WARMUP)
        return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * fall))


class Journal:
    """Lines of JSON, written as they come: the loss curve of a run that may be killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = time.monotonic()

    def write(self, **fields: object) -> None:
        """One line with the seconds since the journal was opened."""
        line = json.dumps({"t": round(time.monotonic() - self._started, 2), **fields})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def optimise(
    phase: Phase,
    parameters: Iterable[tuple[str, nn.Parameter]],
    draw: Callable[[], Inputs],
    loss: Loss,
    journal: Journal,
    checkpoint: Callable[[], None],
    *,
    graphs: bool = False,
    checkpoint_seconds: float = 60.0,
) -> int:
    """Minimise ``loss`` of what ``draw`` gives until the phase is over; returns the steps.

    ``graphs``: replay CUDA graphs, one for each shape of inputs. ``checkpoint`` is called now and then and at the end.
    Raises ``RuntimeError`` when the loss is no number any more.
    """
    make = GraphSteps if graphs else EagerSteps
    steps = make([parameter for _, parameter in parameters if parameter.requires_grad], phase.weight_decay, loss)
    started = saved = time.monotonic()
    step = 0
    while True:
        now = time.monotonic()
        progress = phase.progress(now - started, step)
        if progress >= 1.0:
            break
        steps.set_rate(phase.rate * phase.factor(progress))
        steps.take(draw())
        step += 1
        if step % _LOG_EVERY == 0:
            mean = steps.read_total() / _LOG_EVERY  # the one place where the host waits for the device
            journal.write(phase=phase.name, step=step, loss=round(mean, 4), progress=round(progress, 3))
            if not math.isfinite(mean):
                raise RuntimeError(f"{phase.name}: the loss is {mean} at step {step}; lower the rate ({phase.rate})")
        if now - saved > checkpoint_seconds:
            checkpoint()
            saved = time.monotonic()
    journal.write(phase=phase.name, step=step, ended=True)
    checkpoint()
    return step
