"""The walk through a lattice of candidates: at each position one token, drawn from the row of the token before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.ops import sampling as ops
from engine.sampling.random import Purpose
from engine.steps.records import Fault, Noise, Proposal, TokenLaw


def lattice_masses(scores: torch.Tensor, temperatures: Sequence[float]) -> npt.NDArray[np.int64]:
    """Integer weights int64 [B, K, C, C] of every row of the lattices ``scores`` f32 [B, K, C, C].

    A row over its sum is the softmax of its scores over the block's temperature; with 0 all weight is on its maximum,
    the first one among equals. A row from which nothing can be drawn has no weight at all.
    """
    blocks, drafts, count, _ = scores.shape
    rows = scores.reshape(-1, count)
    temperature = torch.tensor(temperatures, dtype=torch.float32).repeat_interleave(drafts * count)
    plan = ops.sampling_plan(rows, None, None, temperature)
    masses: npt.NDArray[np.int64] = ops.sampling_masses(rows, plan, temperature).numpy()
    return masses.reshape(blocks, drafts, count, count)


def walk(
    candidate_ids: npt.NDArray[np.int64], masses: npt.NDArray[np.int64], first_position: int, width: int, noise: Noise
) -> Proposal | Fault:
    """Draw ``width`` tokens from one block: ids int64 [K, C] and `lattice_masses` [K, C, C].

    The row that a token is drawn from is chosen by the tokens before it alone, and it is the law that the proposal
    records. The token at position p uses the draft noise of p.
    """
    tokens: list[int] = []
    laws: list[TokenLaw] = []
    realised = 0  # before the first position all rows are equal: the anchor chose them
    for step in range(width):
        ids, weights = candidate_ids[step], masses[step, realised]
        total = weights.sum()
        if not total:
            return Fault(f"the draft model's scores of position {first_position + step} are not finite")
        order = np.argsort(ids)
        law = TokenLaw(ids[order], weights[order] / total)
        token = law.draw(noise.bits(first_position + step, Purpose.DRAFT))
        realised = int(np.flatnonzero(ids == token)[0])
        tokens.append(token)
        laws.append(law)
    return Proposal(tuple(tokens), tuple(laws))
