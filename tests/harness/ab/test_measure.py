"""What is said around a session: a GPU that went away, and what the machine did while an outlier was measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.ab import measure
from harness.ab.errors import RepeatError
from harness.ab.session import HEAD, run_session
from harness.machine.gpus import Gpu
from tests.harness.ab.test_session import ASK, Machine

HERE = Gpu(0, "GPU-aa", "Tesla V100", (7, 0), 32768)


def test_a_gpu_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RepeatError("repeat 4 of head: ended with exit code 1:\nCUDA error", crashed=True)
    monkeypatch.setattr(measure, "visible_gpus", lambda environ: ([HERE], {}))
    assert measure.gpu_lost(error, ["GPU-aa"]) is error
    assert measure.gpu_lost(error, []) is error
    lost = measure.gpu_lost(error, ["GPU-aa", "GPU-bb"])
    assert str(lost).startswith("GPU-bb was lost while it was measured: repeat 4 of head")
    assert not lost.crashed  # the machine's fault, so it says nothing about head


def test_an_outlier_stands_beside_what_the_machine_did() -> None:
    def factor(side: str, call: int) -> float:
        return (1.4 if side == HEAD and call == 8 else 1.0) * (1 + 0.001 * (call % 5))

    session = run_session(ASK, Machine(factor).make, lambda: 0.0)

    def doubts(start: float, end: float) -> Sequence[str]:
        return ("1.20 processors' worth of time went to other processes",) if start <= 8 <= end else ()

    said = measure.explain_outliers(session, doubts)
    assert said[0] == ("fast, pair 3 lies far from the others: 1.20 processors' worth of time went to other processes")
