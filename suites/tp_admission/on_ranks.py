"""Real ranks for cases: processes of their own, joined by gloo, or by NCCL where there are enough GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.parallel.group import Group
from engine.parallel.launch import Device, run_ranks
from suites import defects

Job = Callable[..., Any]


def on_ranks(size: int, job: Job, *arguments: Any, device: Device = "cpu") -> list[Any]:
    """``job(group, *arguments)`` on every rank; what each gave back. A planted defect is planted there too."""
    return run_ranks(size, _planted, (job, *arguments), device=device)


def _planted(group: Group, job: Job, *arguments: Any) -> Any:
    defect = defects.planted()
    if defect is not None:
        defect.plant()
    return job(group, *arguments)
