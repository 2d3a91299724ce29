"""What a case may write down: the shape of the ``record`` fixture, which the runner's pytest plugin provides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol


class Record(Protocol):
    """One case's notebook. Inert when pytest runs without an evidence folder."""

    def metric(self, name: str, value: float, unit: str, *, better: str = "neither", exact: bool = True) -> None:
        """One number. ``exact``: any change of it is a change; ``better``: lower, higher or neither."""

    def samples(
        self,
        name: str,
        values: Sequence[float],
        unit: str,
        *,
        better: str = "lower",
        control: str = "",
        rounds: Sequence[Sequence[float]] = (),
    ) -> None:
        """Repeats of one noisy quantity; ``control`` names the tokens record of this case that ties them to work."""

    def tokens(
        self,
        name: str,
        prompts: Sequence[Sequence[int]],
        finish: Sequence[str],
        *,
        rounds: int,
        acceptance_histogram: Sequence[int] = (),
    ) -> str:
        """Generated token ids of each prompt; returns the SHA-256 over all of them."""
        ...

    def unfit(self, reason: str) -> None:
        """Nothing timed here may be compared: a profiler, a planted defect, a debug build."""

    def group(self, name: str) -> None:
        """The report's group of this case."""

    def not_run(self, reason: str) -> NoReturn:
        """End the case as skipped: it needs what this machine does not have."""
        ...
