"""The candidate selector: the best few tokens of each drafted position, and how well each follows each of the last.

    score[l, a, c] = unary[l, c] + sum_r predecessor[p_a, r] * gate[l, r] * successor[c, r]

where c runs over the candidates of position l, p_a over those of position l - 1, and the anchor alone stands in front
of the first position, so that its rows are all equal there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.model.dflash2 import BlockOutputs, DFlash2
from engine.ops import functional


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """The scores of B drafted blocks; every number belongs to its own block alone."""

    candidate_ids: npt.NDArray[np.int64]  # [B, K, C]: by descending logit, lower ids first among equals
    unary: npt.NDArray[np.float32]  # [B, K, C]
    scores: torch.Tensor  # float32 [B, K, C, C]: [.., l, a, c], see above
    faults: tuple[str | None, ...]  # [B]: why nothing may be drafted from the block


def build_lattice(model: DFlash2, anchors: Sequence[int], outputs: BlockOutputs) -> Lattice:
    """The lattice of the blocks that start with ``anchors``, out of their drafted rows."""
    config = model.config
    shape = (len(anchors), config.max_drafts, config.selector_top_k)
    logits = outputs.logits.numpy()
    # NaN and +inf show in the maximum; so does a row of -inf, from which nothing can be drawn.
    usable = np.isfinite(logits.max(axis=1)).reshape(shape[:2]).all(axis=1)
    ids = np.zeros(shape, np.int64)
    unary = np.zeros(shape, np.float32)
    for block in np.flatnonzero(usable):
        for step in range(config.max_drafts):
            row = logits[block * config.max_drafts + step]
            ids[block, step] = best = best_ids(row, config.selector_top_k)
            unary[block, step] = _unary(row[best], config.output_multiplier, config.softcap)
    edges = _edges(model, anchors, ids, outputs.gates)
    return Lattice(
        candidate_ids=ids,
        unary=unary,
        scores=torch.from_numpy(unary)[:, :, None, :] + edges,
        faults=tuple(None if fine else "the draft model's logits are not finite" for fine in usable),
    )


def best_ids(row: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The ids of the ``count`` largest of ``row`` [V], by descending value, lower ids first among equals."""
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= least)
    return ids[np.lexsort((ids, -row[ids]))][:count]


def _unary(logits: npt.NDArray[np.float32], multiplier: float, softcap: float | None) -> npt.NDArray[np.float32]:
    scaled = logits * np.float32(multiplier)
    if softcap is None:
        return scaled
    return np.array([softcap * math.tanh(value / softcap) for value in scaled.tolist()], np.float32)


def _edges(model: DFlash2, anchors: Sequence[int], ids: npt.NDArray[np.int64], gates: torch.Tensor) -> torch.Tensor:
    """float32 [B, K, C, C]."""
    blocks, drafts, count = ids.shape
    before = np.empty_like(ids)
    before[:, 0] = np.array(anchors, np.int64)[:, None]
    before[:, 1:] = ids[:, :-1]
    gated = model.predecessors[torch.from_numpy(before.ravel())] * gates.repeat_interleave(count, dim=0)
    behind = torch.from_numpy(ids).view(-1, 1, count).expand(-1, count, -1).reshape(-1, count)
    return functional.candidate_logits(gated, model.successors, behind).view(blocks, drafts, count, count)
