"""A slow round is named beside what the machine did while it ran."""

from __future__ import annotations

import pytest

from harness.ab.repeat import Prompt, Repeat
from harness.ab.slow_rounds import explain, timed_rounds
from harness.machine.cpu_counters import CpuSample
from harness.machine.gpu_counters import GpuSample
from harness.machine.telemetry import Sample

MS = (10.0, 10.0, 35.0, 10.0, 10.0, 10.0)


def repeat(source: str, began: float, rounds: tuple[float, ...] = MS) -> Repeat:
    at = [began]
    for ms in rounds:
        at.append(at[-1] + ms / 1000)
    prompt = Prompt("p", tuple(range(7)), "stop", began - 0.01, tuple(at), (1,) * 6, tuple(at))
    return Repeat(source, "fast", (prompt,), (), began, at[-1])


def sample(at: float, others: float, throttle: tuple[str, ...] = ()) -> Sample:
    card = GpuSample("GPU-0", 1380 if not throttle else 900, None, None, None, None, None, throttle)
    return Sample(at, CpuSample(2000.0, None, None, others, 0.0, None, None, None), (card,))


def test_each_round_lies_beside_the_line_behind_its_end() -> None:
    seen = [sample(100.025, 0.1), sample(100.06, 1.5), sample(101.0, 0.2)]
    rounds = timed_rounds([repeat("001.json", 100.0)], seen)
    assert [one.sample.cpu.others if one.sample else None for one in rounds] == [0.1, 0.1, 1.5, 0.2, 0.2, 0.2]
    assert [one.number for one in rounds if one.slow] == [3]
    assert timed_rounds([repeat("001.json", 200.0)], seen)[0].sample is None


def test_slow_rounds_are_told_with_what_the_machine_did() -> None:
    seen = [sample(100.025, 0.1), sample(100.06, 1.5, ("sw thermal",)), sample(101.0, 0.2)]
    (said,) = explain("fast of head", [repeat("001.json", 100.0), repeat("002.json", 100.5, (10.0,) * 6)], seen)
    assert said.startswith(
        "fast of head: 1 of 12 rounds took over 2 times the median of their repeat, 1 of them in 001"
    )
    assert "the slowest is round 3 of 'p' in 001.json (35 ms, 3.5 times)" in said
    assert "time of other processes 1.5 processors then, 0.1818 in the other rounds" in said
    assert "SM clock 900 MHz then, 1380 in the other rounds" in said
    assert "the GPU's clocks were held down: sw thermal" in said


@pytest.mark.parametrize("seen", [[], [sample(1.0, 0.0)]], ids=["none", "before"])
def test_without_telemetry_that_is_said(seen: list[Sample]) -> None:
    assert explain("fast of head", [repeat("001.json", 100.0)], seen)[0].endswith("no telemetry tells of them")
    assert explain("fast of head", [repeat("001.json", 100.0, (10.0,) * 6)], seen) == []
