"""Tokens a speculative round emits, over prompts, with intervals: what `measure` counts, and how surely. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RESAMPLES = 10_000
_OUTSIDE = 2.5  # percent on either side of a 95 % interval


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Speculative rounds over some prompts, prompt by prompt; tokens are those after the first one of a reply."""

    tokens_of: tuple[int, ...]
    rounds_of: tuple[int, ...]
    stopped_of: tuple[bool, ...]

    def of(self, which: slice) -> Acceptance:
        """Some of the prompts."""
        return Acceptance(self.tokens_of[which], self.rounds_of[which], self.stopped_of[which])

    @property
    def stopped(self) -> int:
        """Replies that ended by themselves."""
        return sum(self.stopped_of)

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(self.tokens_of)

    @property
    def rounds(self) -> int:
        """Of all prompts."""
        return sum(self.rounds_of)

    @property
    def prompts(self) -> int:
        """How many there were."""
        return len(self.tokens_of)

    @property
    def emitted_per_round(self) -> float:
        """Tokens over rounds."""
        return self.tokens / self.rounds

    def interval(self) -> tuple[float, float]:
        """95 %, by drawing prompts with replacement."""
        return _middle(self._resampled())

    def fall_to(self, other: Acceptance) -> tuple[float, float, float]:
        """How much less ``other`` emits on the same prompts, and the 95 % interval of that, paired by prompt."""
        if self.prompts != other.prompts:
            raise ValueError(f"{self.prompts} and {other.prompts} prompts; allowed: the same ones")
        return self.emitted_per_round - other.emitted_per_round, *_middle(self._resampled() - other._resampled())

    def _resampled(self) -> npt.NDArray[np.float64]:
        """Emitted per round of each resample; the same resamples for equally many prompts."""
        picked = np.random.default_rng(0).integers(self.prompts, size=(_RESAMPLES, self.prompts))
        tokens, rounds = np.array(self.tokens_of), np.array(self.rounds_of)
        ratios: npt.NDArray[np.float64] = tokens[picked].sum(axis=1) / rounds[picked].sum(axis=1)
        return ratios


def _middle(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [_OUTSIDE, 100 - _OUTSIDE])
    return float(low), float(high)
