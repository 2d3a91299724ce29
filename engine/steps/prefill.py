"""Prefill: prompt tokens into the cache, in chunks; the last chunk of a prompt tells the law of the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.runner import ModelRunner, SequenceRows
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from engine.steps.laws import history_of, verification_of
from engine.steps.read_ahead import Asked, ask_ahead
from engine.steps.records import Fault, Noise, Verification


@dataclass(frozen=True, slots=True, eq=False)
class PrefillChunk:
    """The next ``count`` tokens of one sequence. ``params`` and ``noise`` matter only after a prompt's last token."""

    sequence: SequenceState
    params: SamplingParams
    count: int
    noise: Noise | None = None

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
    sampling = [chunk for chunk in chunks if chunk.samples]
    ahead = ask_ahead(runner.device, [_asked(chunk) for chunk in sampling])
    logits = runner.forward(batch, prefill=True)
    rows = zip(sampling, logits.unsqueeze(1), strict=True)
    laws = iter(ahead.read(logits) if ahead is not None else [_verification(chunk, row) for chunk, row in rows])
    return [next(laws) if chunk.samples else None for chunk in chunks]


def _verification(chunk: PrefillChunk, row: torch.Tensor) -> Verification | Fault:
    history = history_of(chunk.sequence, chunk.params)
    return verification_of(len(chunk.sequence.token_ids), row, chunk.params, history)


def _asked(chunk: PrefillChunk) -> Asked | None:
    """See `engine.steps.verify`: the same for a first token, which nobody drafted."""
    return None if chunk.noise is None else Asked(len(chunk.sequence.token_ids), chunk.params, (), chunk.noise)


def _rows(chunk: PrefillChunk) -> SequenceRows:
    sequence = chunk.sequence
    reservation = sequence.reserve(chunk.count, all_stay=True)
    tokens = sequence.token_ids[reservation.start : reservation.start + chunk.count]
    return SequenceRows(tokens, reservation, sequence.block_table, num_logits=int(chunk.samples))
