"""The reference for real ranks: the same ranks as threads of one process, one running at a time, no collective library.

What a rank computes on its own is the engine's; what ranks exchange is handed over here, and what they add up is added
by the oracle. Real ranks must give the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine.parallel import collectives

_SECONDS = 120.0


class _Seat:
    """One thread's `Group`."""

    def __init__(self, table: _Table, rank: int) -> None:
        self._table = table
        self.rank = rank
        self.size = table.size

    def all_gather(self, out: torch.Tensor, local: torch.Tensor) -> None:
        for rank, part in enumerate(self._table.meet(self.rank, local)):
            out[rank] = part

    def broadcast(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._table.meet(self.rank, tensor)[0])


class _Table:
    """Where the threads meet. Whoever runs holds ``turn``, so that nothing runs at the same time as anything else."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = threading.Lock()
        self._laid: list[torch.Tensor] = [torch.empty(0)] * size
        self.everyone = threading.Barrier(size, timeout=_SECONDS)

    def meet(self, rank: int, mine: torch.Tensor) -> list[torch.Tensor]:
        self._laid[rank] = mine.clone()
        self._wait()
        taken = list(self._laid)
        self._wait()  # nobody lays the next one before all have taken this one
        return taken

    def _wait(self) -> None:
        self.turn.release()
        try:
            self.everyone.wait()
        finally:
            self.turn.acquire()


def in_lockstep(size: int, job: Callable[..., Any], *arguments: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """``job(group, *arguments)`` on ``size`` ranks of this process, with sums taken in NumPy."""
    monkeypatch.setattr(collectives, "ordered_sum", _reference_sum)
    table = _Table(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        with table.turn:
            try:
                results[rank] = job(_Seat(table, rank), *arguments)
            except BaseException as error:
                errors.append(error)
                table.everyone.abort()
                raise

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_SECONDS)
    if errors:
        raise errors[0]
    return results


def _reference_sum(parts: torch.Tensor, out: torch.Tensor) -> None:
    numbers = parts.numpy().astype(np.float32)
    total = numbers[0].copy()
    for part in numbers[1:]:
        total = (total + part).astype(np.float32)
    out.copy_(torch.from_numpy(total))
