"""Prefill: prompt tokens into the cache, in chunks; the last chunk of a prompt tells the law of the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.runner import ModelRunner, SequenceRows
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from engine.steps.laws import verification_of
from engine.steps.records import Fault, Verification


@dataclass(frozen=True, slots=True, eq=False)
class PrefillChunk:
    """The next ``count`` tokens of one sequence. ``params`` is asked for only behind the last token of a prompt."""

    sequence: SequenceState
    params: SamplingParams
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.sequence.num_to_prefill:
            raise ValueError(f"a chunk of {self.count}; allowed: 1 to the {self.sequence.num_to_prefill} that are left")

    @property
    def samples(self) -> bool:
        """Whether the chunk ends a prompt, so that its last row chooses the first token."""
        return self.sequence.num_computed + self.count == len(self.sequence.token_ids)


def prefill(runner: ModelRunner, chunks: Sequence[PrefillChunk]) -> list[Verification | Fault | None]:
    """Compute one chunk of each sequence in one forward; reserves the rows, commits nothing.

    Returns, for each chunk that ends a prompt, the verification of an empty proposal; None for the others.
    """
    batch = [_rows(chunk) for chunk in chunks]
    logits = iter(torch.split(runner.forward(batch, prefill=True), 1))
    return [
        verification_of(len(chunk.sequence.token_ids), next(logits), chunk.params) if chunk.samples else None
        for chunk in chunks
    ]


def _rows(chunk: PrefillChunk) -> SequenceRows:
    sequence = chunk.sequence
    reservation = sequence.reserve(chunk.count, all_stay=True)
    tokens = sequence.token_ids[reservation.start : reservation.start + chunk.count]
    return SequenceRows(tokens, reservation, sequence.block_table, num_logits=int(chunk.samples))
