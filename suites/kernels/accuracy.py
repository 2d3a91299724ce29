"""How much of its bound an op used: an exact figure of accuracy, because the CPU's bits are the same everywhere."""

from __future__ import annotations

from suites.oracles import judge
from suites.oracles.arrays import F64
from suites.oracles.tolerance import Tolerance
from suites.recording import Record
from suites.targets import CPU, Target


def record_share(record: Record, target: Target, actual: F64, expected: F64, limit: Tolerance) -> None:
    """The largest error over its own limit, three digits. Only for the CPU: elsewhere bits are not proven stable."""
    if target is CPU:
        share = float(f"{judge.worst_share(actual, expected, limit):.3g}")
        record.metric("largest error over its bound", share, "1", better="lower")
