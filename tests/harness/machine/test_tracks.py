"""Telemetry as tracks: what was told, in the seconds of the scope, thinned without losing a peak."""

from __future__ import annotations

from harness.machine.cpu_counters import CpuSample
from harness.machine.gpu_counters import GpuSample
from harness.machine.telemetry import Sample
from harness.machine.tracks import LONGEST, tracks


def look(at: float, own: float | None = 1.0, throttle: tuple[str, ...] = (), cards: int = 1) -> Sample:
    cpu = CpuSample(None, 0.5, own, 0.0, 0.0, 1.0, 1.0, 0.0)
    card = GpuSample("GPU-1", 1530, None, 250.0, 60, 99, 100, throttle)
    return Sample(at, cpu, (card,) * cards)


def test_time_counts_from_the_first_look_and_what_was_never_told_is_no_track() -> None:
    found = {(it.quantity, it.source): it for it in tracks([look(100.0), look(101.5)])}
    assert found["processors in use", "this scope"].points == ((0.0, 1.0), (1.5, 1.0))
    assert ("CPU clock", "CPU") not in found
    assert ("memory clock", "GPU 0") not in found
    assert found["SM clock", "GPU 0"].unit == "MHz"


def test_a_look_that_was_not_told_leaves_a_gap_not_a_zero() -> None:
    found = next(it for it in tracks([look(0), look(1, own=None), look(2)]) if it.source == "this scope")
    assert [at for at, _ in found.points] == [0.0, 2.0]


def test_held_down_clocks_count_the_cards() -> None:
    found = tracks([look(0, cards=2), look(1, throttle=("power cap",), cards=2)])
    held = next(it for it in found if it.source == "power cap")
    assert held.points == ((0.0, 0.0), (1.0, 2.0))


def test_a_long_track_keeps_its_peak() -> None:
    looks = [look(float(at), own=9.0 if at == 777 else 1.0) for at in range(3 * LONGEST)]
    found = next(it for it in tracks(looks) if it.source == "this scope")
    assert len(found.points) <= LONGEST
    assert (777.0, 9.0) in found.points


def test_nothing_watched_is_no_track() -> None:
    assert tracks([]) == ()
