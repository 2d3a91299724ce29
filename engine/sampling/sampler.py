"""Choosing one token per row: greedy, or drawn with the seeded generator from what the cutoffs keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.ops import sampling as ops
from engine.sampling.cutoffs import RowSettings, row_faults
from engine.sampling.random import Purpose, random_bits_tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row, or the reason why there is none.

    ``token_ids[i]`` is -1 exactly where ``faults[i]`` says why; a fault of one row says nothing about its neighbours.
    """

    token_ids: tuple[int, ...]
    faults: tuple[str | None, ...]

    def __post_init__(self) -> None:
        if [token < 0 for token in self.token_ids] != [fault is not None for fault in self.faults]:
            raise ValueError(f"token ids {self.token_ids} and faults {self.faults} do not agree")


def greedy(logits: Tensor) -> Tensor:
    """The lowest id of each row's maximum, i64 [B]; -1 for a row with NaN, +inf or nothing finite. f32 [B, V]."""
    return ops.bind_greedy(logits)()


def sample(
    logits: Tensor,
    settings: RowSettings,
    seeds: Sequence[int],
    positions: Sequence[int],
    purpose: Purpose = Purpose.TARGET,
) -> Sampled:
    """Draws one token for each row of `logits` f32 [B, V], which are only read.

    `seeds[i]` and `positions[i]` (the position that the token will take) name the random number of row i.
    """
    bits = random_bits_tensor(seeds, positions, purpose, device=logits.device)
    plan, token_ids = ops.sampling_sample(logits, bits, settings.top_k, settings.top_p, settings.temperature)
    return Sampled(tuple(token_ids.tolist()), row_faults(plan))
