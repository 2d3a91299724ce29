"""What telemetry says about a stretch of time: figures, and reasons to doubt what was measured in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.machine.telemetry import Sample

STEAL_LIMIT = 0.02
"""Processors' worth of time taken by other machines, from which a repeat may be slow for that reason alone."""

OTHERS_LIMIT = 0.25
"""Processors' worth of time used by processes that are not ours."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A stretch of samples in figures; ``None`` where telemetry has none. ``doubts``: sentences with a figure each."""

    samples: int
    steal: float | None
    others: float | None
    mhz_low: float | None
    mhz_high: float | None
    sm_mhz_low: int | None
    sm_mhz_high: int | None
    temperature_high: int | None
    throttle: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def excuses(self) -> bool:
        """Whether an outside witness may explain a slow repeat."""
        return bool(self.doubts)


def witness(samples: Sequence[Sample], spare_processors: float = 0.0) -> Witness:
    """Sum up samples. ``spare_processors``: how many processors the measurement leaves unused, where others may run."""
    steal = _mean([sample.cpu.steal for sample in samples])
    others = _mean([sample.cpu.others for sample in samples])
    mhz = [sample.cpu.mhz for sample in samples if sample.cpu.mhz is not None]
    cards = [card for sample in samples for card in sample.gpus]
    clocks = [card.sm_mhz for card in cards if card.sm_mhz is not None]
    heat = [card.temperature_c for card in cards if card.temperature_c is not None]
    throttle = tuple(dict.fromkeys(reason for card in cards for reason in card.throttle))
    doubts = []
    if steal is not None and steal > STEAL_LIMIT:
        doubts.append(f"{steal:.2f} processors' worth of time was taken by other machines")
    if others is not None and others > OTHERS_LIMIT + spare_processors:
        doubts.append(f"{others:.2f} processors' worth of time went to other processes")
    doubts += [f"the GPU's clocks were held down: {reason}" for reason in throttle]
    return Witness(
        len(samples),
        steal,
        others,
        min(mhz, default=None),
        max(mhz, default=None),
        min(clocks, default=None),
        max(clocks, default=None),
        max(heat, default=None),
        throttle,
        tuple(doubts),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return fmean(told) if told else None
