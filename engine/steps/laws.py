"""From logits to the laws that reject judges by: each row's temperature and cutoffs, never a copy of the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.ops import sampling as ops
from engine.request import SamplingParams
from engine.sampling.cutoffs import RowSettings, plan_cutoffs, row_faults
from engine.sampling.distributions import target_probs, token_weights
from engine.sampling.sampler import greedy
from engine.steps.records import DraftLaw, Fault, PointLaw, TargetLaw, TokenLaw, Verification

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class LogitsLaw:
    """The law of one row, evaluated where it lies: logits f32 [1, V] with their plan. Valid until the next forward.

    ``excluded`` is a token that is taken out (the residual of a point mass), or -1.
    """

    logits: torch.Tensor
    plan: torch.Tensor
    temperature: torch.Tensor | None
    excluded: int = _NO_TOKEN

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`; asked of a whole row only."""
        (weight,) = token_weights(self.logits, self.plan, torch.tensor([token_id]), self.temperature)
        return weight.probability

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`."""
        bits = torch.from_numpy(np.array([random_bits], dtype=np.uint64).view(np.int64))
        excluded = torch.tensor([self.excluded])
        drawn = int(ops.sampling_draw(self.logits, self.plan, bits, self.temperature, excluded=excluded))
        # Nothing is left without the excluded token: it had all the mass, and only rounding can have rejected it.
        return drawn if drawn != _NO_TOKEN else self.excluded

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """See `TargetLaw`. Without its one token, the target needs no writing out."""
        if isinstance(draft, PointLaw):
            return LogitsLaw(self.logits, self.plan, self.temperature, excluded=draft.token_id)
        probs = target_probs(self.logits, self.plan, self.temperature)[0].numpy()
        kept = np.flatnonzero(probs)
        return TokenLaw(kept, probs[kept]).residual(draft)


def verification_of(first_position: int, logits: torch.Tensor, params: SamplingParams) -> Verification | Fault:
    """The law of each row of one request, logits f32 [rows, V], or why a row has none; other requests are untouched."""
    if params.greedy:
        best = greedy(logits).tolist()
        if _NO_TOKEN in best:
            return Fault(f"the logits of position {first_position + best.index(_NO_TOKEN)} are not finite")
        return Verification(first_position, tuple(PointLaw(token_id) for token_id in best))
    settings = RowSettings.of([params] * len(logits))
    plan = plan_cutoffs(logits, settings)
    for row, fault in enumerate(row_faults(plan)):
        if fault is not None:
            return Fault(f"position {first_position + row}: {fault}")
    temperature = settings.temperature
    laws = (
        LogitsLaw(logits[row, None], plan[row, None], None if temperature is None else temperature[row, None])
        for row in range(len(logits))
    )
    return Verification(first_position, tuple(laws))
