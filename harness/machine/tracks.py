"""Telemetry lines -> tracks: one quantity of the machine over the time of a scope, ready to be drawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.machine.telemetry import Sample
from harness.model import Track

PROCESSORS = "processors in use"
# A strip is a few hundred dots wide; beyond that, a track keeps the greatest value of each stretch, so no peak is lost.
LONGEST = 400


def tracks(samples: Sequence[Sample]) -> tuple[Track, ...]:
    """Every quantity that was sampled at least once; time in seconds since the first look."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}

    def add(quantity: str, source: str, unit: str, at: float, value: float | None) -> None:
        if value is not None:
            found.setdefault((quantity, source, unit), []).append((at, float(value)))

    held_down = list(dict.fromkeys(reason for sample in samples for card in sample.gpus for reason in card.throttle))
    for sample in samples:
        at = round(sample.at - samples[0].at, 3)
        add(PROCESSORS, "this scope", "processors", at, sample.cpu.own)
        add(PROCESSORS, "other processes", "processors", at, sample.cpu.others)
        add(PROCESSORS, "other machines (steal)", "processors", at, sample.cpu.steal)
        add("CPU clock", "CPU", "MHz", at, sample.cpu.mhz)
        for place, card in enumerate(sample.gpus):
            add("SM clock", f"GPU {place}", "MHz", at, card.sm_mhz)
            add("memory clock", f"GPU {place}", "MHz", at, card.memory_mhz)
            add("power", f"GPU {place}", "W", at, card.power_w)
            add("temperature", f"GPU {place}", "°C", at, card.temperature_c)
        for reason in held_down:
            add("GPUs whose clocks are held down", reason, "GPUs", at, sum(reason in c.throttle for c in sample.gpus))
    return tuple(Track(*key, tuple(_thinned(points))) for key, points in found.items())


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stretch = -(-len(points) // LONGEST)
    return [max(points[i : i + stretch], key=lambda point: point[1]) for i in range(0, len(points), stretch)]
