"""Which rounds were slow, and what the machine did meanwhile: every round is laid beside the telemetry. Pure.

A round's stamps and ``telemetry.jsonl`` count the same seconds (CLOCK_MONOTONIC), so the line that follows a round's
end tells of the stretch in which it ended: a second, usually. Nothing is left out for what is said here.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from harness.ab.repeat import Repeat
from harness.machine.telemetry import Sample

SLOW = 2.0
"""Times the median round of its repeat, from which a round is called slow."""


_TOLD: tuple[tuple[str, str, Callable[[Sample], float | None]], ...] = (
    ("time of other processes", "processors", lambda sample: sample.cpu.others),
    ("time of other machines", "processors", lambda sample: sample.cpu.steal),
    ("own switches away", "a second", lambda sample: sample.cpu.switched_out),
    ("CPU clock", "MHz", lambda sample: sample.cpu.mhz),
    ("SM clock", "MHz", lambda sample: min((c.sm_mhz for c in sample.gpus if c.sm_mhz is not None), default=None)),
)


@dataclass(frozen=True, slots=True)
class TimedRound:
    """One round: which, how long it took, and the telemetry of the stretch in which it ended, where there is any."""

    source: str
    prompt: str
    number: int
    ms: float
    times_median: float
    sample: Sample | None

    @property
    def slow(self) -> bool:
        return self.times_median > SLOW


def timed_rounds(repeats: Sequence[Repeat], samples: Sequence[Sample]) -> list[TimedRound]:
    """Every round of ``repeats`` in order; ``samples`` as they were taken."""
    taken = [sample.at for sample in samples]
    found = []
    for repeat in repeats:
        usual = median(repeat.rounds)
        for prompt in repeat.prompts:
            for number, (ms, end) in enumerate(zip(prompt.round_ms, prompt.at[1:], strict=True), 1):
                place = bisect_left(taken, end)
                sample = samples[place] if place < len(samples) else None
                found.append(TimedRound(repeat.source, prompt.name, number, ms, ms / usual, sample))
    return found


def explain(who: str, repeats: Sequence[Repeat], samples: Sequence[Sample]) -> list[str]:
    """What there is to say about the slow rounds of one arm on one side; nothing where there are none."""
    rounds = timed_rounds(repeats, samples)
    slow = [one for one in rounds if one.slow]
    if not slow:
        return []
    worst = max(slow, key=lambda one: one.times_median)
    by_source = {source: len(list(group)) for source, group in itertools.groupby(slow, lambda one: one.source)}
    most = max(by_source, key=lambda source: by_source[source])
    others = [one for one in rounds if not one.slow]
    said = f"{who}: {len(slow)} of {len(rounds)} rounds took over {SLOW:g} times the median of their repeat, "
    said += f"{by_source[most]} of them in {most}; the slowest is round {worst.number} of {worst.prompt!r} in "
    said += f"{worst.source} ({worst.ms:.3g} ms, {worst.times_median:.1f} times); {_meanwhile(slow, others)}"
    return [said]


def _meanwhile(slow: Sequence[TimedRound], others: Sequence[TimedRound]) -> str:
    """The machine while slow rounds ran, beside the rest."""
    words = []
    for name, unit, told in _TOLD:
        seen = [[v for one in some if one.sample and (v := told(one.sample)) is not None] for some in (slow, others)]
        if all(seen):
            words.append(f"{name} {fmean(seen[0]):.4g} {unit} then, {fmean(seen[1]):.4g} in the other rounds")
    held = {reason for one in slow if one.sample for card in one.sample.gpus for reason in card.throttle}
    words += [f"the GPU's clocks were held down: {reason}" for reason in sorted(held)]
    return ", ".join(words) or "no telemetry tells of them"
