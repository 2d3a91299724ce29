"""Arms whose model several ranks share: rank 0 generates and tells the time, the others follow it."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from suites import defects
from suites.latency import delay, fitness
from suites.latency.arms import Arm
from suites.latency.engines import load, measured

if TYPE_CHECKING:
    from engine.parallel.group import Group


def measure_over_ranks(arms: Sequence[Arm]) -> tuple[list[dict[str, Any]], list[str], int]:
    """What rank 0 measured of ``arms``, which share an engine: see `_on_rank`."""
    from engine.parallel.launch import run_ranks

    first = arms[0]
    answer: tuple[list[dict[str, Any]], list[str], int] = run_ranks(
        first.tp, _on_rank, (list(arms),), device="cpu" if first.device == "cpu" else "cuda"
    )[0]
    return answer


def _on_rank(group: Group, arms: list[Arm]) -> tuple[list[dict[str, Any]], list[str], int] | None:
    """On rank 0 the runs of each arm, why its times would be unfit, and its peak resident bytes."""
    percent = delay.asked_for(os.environ)
    if percent:
        delay.plant(percent)
    defect = defects.planted()
    if defect is not None:
        defect.plant()
    llm = load(arms[0], max(arm.batch for arm in arms), group)
    if group.rank:
        llm.follow()
        return None
    found = [measured(llm, arm, None) for arm in arms]
    unfit = [*fitness.unfit_reasons(), *fitness.engine_reasons(llm)]
    llm.close()
    return found, unfit, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
