"""The three places where a decoder meets other ranks: embedding, row-parallel products, logits.

Column-parallel products need no rank but this one. With one rank each of these is the plain call, and nothing else.
"""

from __future__ import annotations

import torch

from engine.linear.adapter import AdaptedLinear
from engine.ops import bound
from engine.ops.bound import Step
from engine.ops.functional import Weight
from engine.parallel.collectives import Collectives
from engine.parallel.group import Alone, Group
from engine.parallel.head import ParallelHead
from engine.parallel.plan import VocabSplit


class TensorParallel:
    """Binds what a decoder shares with the other ranks of ``group``.

    ``vocab`` says which rows of embedding and head this rank holds; ``fp32_logits`` asks for logits of an FP16 head in
    float32.
    """

    def __init__(self, group: Group, vocab: VocabSplit, *, fp32_logits: bool = False) -> None:
        if vocab.tp != group.size:
            raise ValueError(f"vocabulary split over {vocab.tp} ranks, group of {group.size}; allowed: the same number")
        self.vocab = vocab
        self._group = group
        self._collectives = Collectives(group)
        self._fp32_logits = fp32_logits
        self._rows = vocab.rows(group.rank)

    def embedding(self, ids: torch.Tensor, weight: Weight, *, out: torch.Tensor) -> list[Step]:
        """``out`` [T, H] = the rows ``ids`` int32 [T] of the whole vocabulary, whoever holds them.

        A rank's share is zero where it does not hold the row, so the sum is that row, exactly.
        """
        if self._group.size == 1:
            return [bound.embedding(ids, weight, out=out)]
        local_ids = torch.zeros_like(ids)
        foreign = torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
        start, stop = self._rows.start, self._rows.stop

        def place() -> None:
            torch.sub(ids, start, out=local_ids)
            torch.logical_or(ids < start, ids >= stop, out=foreign[:, 0])
            local_ids.masked_fill_(foreign[:, 0], 0)

        share = self._collectives.buffer("share", tuple(out.shape), out.dtype, out.device)
        return [
            place,
            bound.embedding(local_ids, weight, out=share),
            lambda: share.masked_fill_(foreign, 0),
            self._collectives.sum_into(share, out),
        ]

    def add_linear(self, x: torch.Tensor, projection: AdaptedLinear, hidden: torch.Tensor) -> list[Step]:
        """``hidden`` [T, H] += x [T, K / size] @ weight.T of all ranks, summed in rank order."""
        if self._group.size == 1:
            return projection.bind(x, hidden, residual=hidden)
        partial = self._collectives.buffer("share", tuple(hidden.shape), hidden.dtype, hidden.device)
        return [*projection.bind(x, partial), self._collectives.add_sum(partial, hidden)]

    def head(self, weight: Weight) -> ParallelHead:
        """The head of this rank's share ``weight``. Raises ``InputError`` for one that is not admitted."""
        return ParallelHead(
            self._group, self.vocab, weight, fp32_logits=self._fp32_logits, collectives=self._collectives
        )


def single(vocab_size: int) -> TensorParallel:
    """For a model that no other rank shares."""
    return TensorParallel(Alone(), VocabSplit(vocab_size, 1))
