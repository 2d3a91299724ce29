"""Target distributions: exactly the numbers that tokens are drawn from, never a second softmax beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.ops import sampling as ops
from engine.sampling.random import UNIFORM_BITS


def target_probs(logits: Tensor, plan: Tensor, temperature: Tensor | None = None) -> Tensor:
    """The distribution of each row after its cutoffs, float64 [B, V]; rows sum to 1 up to fp64 rounding.

    `logits` f32 [B, V] with the plan made from them. A greedy row is one-hot; a row at fault is all 0, so that it can
    neither accept nor emit anything.
    """
    masses = ops.sampling_masses(logits, plan, temperature)
    totals = masses.sum(dim=1, keepdim=True)
    return masses.to(torch.float64) / totals.clamp(min=1)


@dataclass(frozen=True, slots=True)
class TokenWeight:
    """Probability of one token as a fraction of integers: `weight / total`, with no rounding anywhere."""

    weight: int
    total: int

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= self.total:
            raise ValueError(f"weight {self.weight} of a total of {self.total}; allowed: 0 up to the total")

    @property
    def probability(self) -> float:
        """The fraction in fp64; 0 for a row at fault."""
        return self.weight / self.total if self.total else 0.0

    def accepts(self, random_bits: int) -> bool:
        """Whether `uniform < probability`, decided in integers; `random_bits` as from `engine.sampling.random`."""
        numerator = 2 * (random_bits >> (64 - UNIFORM_BITS)) + 1  # uniform = numerator / 2**(UNIFORM_BITS + 1)
        return numerator * self.total < self.weight << (UNIFORM_BITS + 1)


def token_weights(
    logits: Tensor, plan: Tensor, token_ids: Tensor, temperature: Tensor | None = None
) -> tuple[TokenWeight, ...]:
    """Weight of `token_ids` i64 [B], one a row, under the row's target distribution. Waits for the device on a GPU."""
    pairs = ops.sampling_weigh(logits, plan, token_ids, temperature).tolist()
    return tuple(TokenWeight(weight, total) for weight, total in pairs)
