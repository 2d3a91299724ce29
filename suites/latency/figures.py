"""What a repeat's timestamps amount to. Pure: numbers in, numbers out; the definitions of a round's figures live here.

A round is one draft, verification, rejection and commit. ``round_ms = 1000 * (last token - first token) / rounds`` on
the host clock: prefill and the first token are outside. A repeat's figure is one number over all its prompts; a median
over repeats is taken by who compares, never here.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt's generation. ``token_ts``: of the first token, then of the end of each round; host seconds."""

    prompt: str
    token_ids: tuple[int, ...]
    finish: str
    arrival_ts: float
    token_ts: tuple[float, ...]
    emitted: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.token_ts) != len(self.emitted) + 1:
            raise ValueError(
                f"{self.prompt}: {len(self.token_ts)} timestamps for a first token and {self.rounds} rounds"
            )
        if 1 + sum(self.emitted) != len(self.token_ids):
            raise ValueError(
                f"{self.prompt}: {len(self.token_ids)} tokens, but a first one and rounds of {sum(self.emitted)}"
            )
        if any(later < sooner for sooner, later in itertools.pairwise((self.arrival_ts, *self.token_ts))):
            raise ValueError(f"{self.prompt}: timestamps run backwards")

    @property
    def rounds(self) -> int:
        """Rounds after the first token."""
        return len(self.emitted)


Runs = Sequence[PromptRun]


def decode_seconds(run: PromptRun) -> float:
    """From the first token to the last."""
    return run.token_ts[-1] - run.token_ts[0]


def round_ms(runs: Runs) -> float:
    """Milliseconds of decoding a round, over all prompts of a repeat."""
    return 1000 * sum(decode_seconds(run) for run in runs) / rounds(runs)


def round_times_ms(runs: Runs) -> list[float]:
    """Every round's own milliseconds, in order; a secondary series."""
    return [1000 * (end - start) for run in runs for start, end in itertools.pairwise(run.token_ts)]


def ttft_ms(runs: Runs) -> float:
    """Mean milliseconds from a prompt's arrival to its first token."""
    return 1000 * sum(run.token_ts[0] - run.arrival_ts for run in runs) / len(runs)


def decode_tokens_per_second(runs: Runs) -> float:
    """Tokens after the first of each prompt over the time since the first."""
    return sum(len(run.token_ids) - 1 for run in runs) / sum(decode_seconds(run) for run in runs)


def rounds(runs: Runs) -> int:
    """Rounds of all prompts."""
    return sum(run.rounds for run in runs)


def emitted_per_round(runs: Runs) -> float:
    """All emitted tokens over all rounds."""
    return sum(len(run.token_ids) for run in runs) / rounds(runs)


def emission_histogram(runs: Runs) -> list[int]:
    """``[i]`` counts the rounds that emitted i tokens."""
    emitted = [count for run in runs for count in run.emitted]
    return [emitted.count(size) for size in range(max(emitted, default=0) + 1)]


def tokens_sha256(runs: Runs) -> str:
    """SHA-256 over the little-endian int32 ids of all prompts in order."""
    ids = [token_id for run in runs for token_id in run.token_ids]
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
