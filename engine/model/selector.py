"""The candidate selector: the best few tokens of each drafted position, and how well each follows each of the last.

    score[l, a, c] = unary[l, c] + sum_r predecessor[p_a, r] * gate[l, r] * successor[c, r]

where c runs over the candidates of position l, p_a over those of position l - 1, and the anchor alone stands in front
of the first position, so that its rows are all equal there.

On a device everything is worked out where the logits lie; candidates and scores then come to the host in one read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.model.dflash2 import BlockOutputs, DFlash2
from engine.model.dflash2_config import DFlash2Config
from engine.ops import functional
from engine.ops.head import best_ids_on_device
from engine.ops.placement import upload_no_sync


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """The scores of B drafted blocks, on the host; every number belongs to its own block alone."""

    candidate_ids: npt.NDArray[np.int64]  # [B, K, C]: by descending logit, lower ids first among equals
    unary: npt.NDArray[np.float32]  # [B, K, C]
    scores: torch.Tensor  # float32 [B, K, C, C]: [.., l, a, c], see above
    faults: tuple[str | None, ...]  # [B]: why nothing may be drafted from the block


def build_lattice(model: DFlash2, anchors: Sequence[int], outputs: BlockOutputs) -> Lattice:
    """The lattice of the blocks that start with ``anchors``, out of their drafted rows."""
    config = model.config
    blocks, drafts, count = len(anchors), config.max_drafts, config.selector_top_k
    # NaN and +inf show in the maximum; so does a row of -inf, from which nothing can be drawn.
    usable = outputs.logits.amax(dim=1).isfinite().view(blocks, drafts).all(dim=1)
    best = best_ids_on_device if model.device.device.type == "cuda" else best_ids_on_host
    ids = best(outputs.logits, count).view(blocks, drafts, count)
    unary = _unary(outputs.logits.gather(1, ids.flatten(0, 1)), config).view(ids.shape)
    scores = unary[:, :, None, :] + _edges(model, anchors, ids, outputs.gates)
    # One tensor, so that one read brings it all; ids and float32 numbers are exact in float64.
    parts = (ids, unary, scores, usable)
    read = torch.split(torch.cat([part.double().flatten() for part in parts]).cpu(), [part.numel() for part in parts])
    return Lattice(
        candidate_ids=read[0].long().view(ids.shape).numpy(),
        unary=read[1].float().view(unary.shape).numpy(),
        scores=read[2].float().view(scores.shape),
        faults=tuple(None if fine else "the draft model's logits are not finite" for fine in read[3].tolist()),
    )


def best_ids_on_host(logits: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of the ``count`` largest of each row of ``logits`` f32 [M, V], int64 [M, count].

    By descending value, lower ids first among equals; a row with NaN has `count` ids of some kind.
    """
    return torch.from_numpy(np.stack([best_ids(row, count) for row in logits.numpy()]))


def best_ids(row: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The same for one row [V]."""
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(~(row < least))
    return ids[np.lexsort((ids, -row[ids]))][:count]


def _unary(logits: torch.Tensor, config: DFlash2Config) -> torch.Tensor:
    scaled = logits * config.output_multiplier
    cap = config.softcap
    if cap is None:
        return scaled
    if logits.is_cuda:
        return cap * torch.tanh(scaled / cap)
    # On the host a tanh whose bits hang on the width of vectors will not do.
    capped = [cap * math.tanh(value / cap) for value in scaled.flatten().tolist()]
    return torch.tensor(capped, dtype=torch.float32).view(scaled.shape)


def _edges(model: DFlash2, anchors: Sequence[int], ids: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """float32 [B, K, C, C]."""
    blocks, drafts, count = ids.shape
    first = upload_no_sync(list(anchors), torch.int64, ids.device).view(blocks, 1, 1).expand(-1, 1, count)
    before = torch.cat((first, ids[:, :-1]), dim=1)
    gated = model.predecessors[before.flatten()] * gates.repeat_interleave(count, dim=0)
    behind = ids.view(-1, 1, count).expand(-1, count, -1).reshape(-1, count)
    return functional.candidate_logits(gated, model.successors, behind).view(blocks, drafts, count, count)
