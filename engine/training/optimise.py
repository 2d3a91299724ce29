"""One optimiser loop for every phase: it ends after its seconds (or steps), and its rate follows the clock."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

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
    loss_of_step: Callable[[], torch.Tensor],
    journal: Journal,
    checkpoint: Callable[[], None],
    *,
    checkpoint_seconds: float = 60.0,
) -> int:
    """Minimise until the phase is over; returns the steps. ``checkpoint`` is called now and then and at the end.

    Raises ``RuntimeError`` when the loss is no number any more.
    """
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    matrices = [parameter for _, parameter in named if parameter.dim() >= 2]
    others = [parameter for _, parameter in named if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": phase.weight_decay}, {"params": others, "weight_decay": 0.0}]
    on_gpu = matrices[0].is_cuda
    optimiser = torch.optim.AdamW(groups, lr=phase.rate, betas=(0.9, 0.95), fused=on_gpu)
    started = saved = time.monotonic()
    step, total = 0, torch.zeros((), device=matrices[0].device)
    while True:
        now = time.monotonic()
        progress = phase.progress(now - started, step)
        if progress >= 1.0:
            break
        for group in optimiser.param_groups:
            group["lr"] = phase.rate * phase.factor(progress)
        loss = loss_of_step()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 1.0)
        optimiser.step()
        step += 1
        total += loss.detach()
        if step % _LOG_EVERY == 0:
            mean = float(total) / _LOG_EVERY  # the one place where the host waits for the device
            total.zero_()
            journal.write(phase=phase.name, step=step, loss=round(mean, 4), progress=round(progress, 3))
            if not math.isfinite(mean):
                raise RuntimeError(f"{phase.name}: the loss is {mean} at step {step}; lower the rate ({phase.rate})")
        if now - saved > checkpoint_seconds:
            checkpoint()
            saved = time.monotonic()
    journal.write(phase=phase.name, step=step, ended=True)
    checkpoint()
    return step
