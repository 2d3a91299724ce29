"""The language-model head over ranks: logits of the whole vocabulary, and the best candidates with exact values.

Each rank holds a contiguous share of the vocabulary. Which dtype leaves a rank is decided by admission, from the opt-in
flag alone; whoever wants to know asks the logits, not the flag. Ties go to the lower token id, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.errors import InputError
from engine.linear.adapter import weight_format
from engine.linear.admission import LinearKernel, Projection, Refused, Split, admit
from engine.ops import bound
from engine.ops.bound import Step
from engine.ops.functional import Weight
from engine.ops.head import best_ids_on_device
from engine.parallel.collectives import Collectives
from engine.parallel.group import Group
from engine.parallel.plan import VocabSplit

_NO_TOKEN = torch.iinfo(torch.int64).max  # an id that loses every tie


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The best k tokens of each row, best first, and one more: the sentinel tells whether the cut parts a tie."""

    values: torch.Tensor  # float32 [M, k]
    ids: torch.Tensor  # int64 [M, k]
    sentinel_values: torch.Tensor  # float32 [M]
    sentinel_ids: torch.Tensor  # int64 [M]

    @property
    def cuts_a_tie(self) -> torch.Tensor:
        """bool [M]: the first token that is left out is as good as the last that is kept."""
        return self.sentinel_values == self.values[:, -1]


def logits_dtype(projection: Projection, tp: int, *, fp32_logits: bool) -> torch.dtype:
    """What a head's logits are stored as. Raises ``InputError`` where the head is not admitted at all."""
    answer = admit(projection, tp, fp32_logits=fp32_logits)
    if isinstance(answer, Refused):
        raise InputError(str(answer))
    half = projection.format == "fp16_head" and answer.kernel is not LinearKernel.FP32_HEAD
    return torch.float16 if half else torch.float32


def head_projection(vocab: VocabSplit, hidden_size: int, weight_format: str) -> Projection:
    """The head of a model, with the rows that fill up the last ranks' shares."""
    return Projection("lm head", vocab.local * vocab.tp, hidden_size, weight_format, Split.COLUMN)


class ParallelHead:
    """The head of one rank, rows [vocab.local, H]: what the decoders make their logits with.

    ``dtype`` is what the ranks exchange of the logits. One rank alone rounds nothing: its logits are float32.
    """

    def __init__(
        self,
        group: Group,
        vocab: VocabSplit,
        weight: Weight,
        *,
        fp32_logits: bool,
        collectives: Collectives | None = None,
    ) -> None:
        """Raises ``InputError`` for a shape that is not admitted, ``ValueError`` for other rows than the share has."""
        rows, hidden_size = weight.shape if isinstance(weight, torch.Tensor) else (weight.n, weight.k)
        if rows != vocab.local:
            raise ValueError(f"head of {rows} rows; allowed: the {vocab.local} of a share")
        self.dtype = torch.float32
        if group.size > 1:
            projection = head_projection(vocab, hidden_size, _head_format(weight))
            self.dtype = logits_dtype(projection, vocab.tp, fp32_logits=fp32_logits)
        self._group = group
        self._collectives = collectives or Collectives(group)
        self._vocab = vocab
        self._rows = vocab.rows(group.rank)
        self._weight = weight

    def bind(self, x: torch.Tensor, out: torch.Tensor) -> list[Step]:
        """Steps from ``x`` [M, H] to the logits ``out`` [M, V] of the whole vocabulary, on every rank.

        ``out`` is float32, or of ``dtype`` where several ranks share the head.
        """
        if self._group.size == 1:
            return [bound.head(x, self._weight, out=out)]
        local, steps = self._local(x)
        return [*steps, self._collectives.gather_columns(local, out)]

    def dense(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [M, V] of ``dtype``, whole on every rank."""
        out = torch.empty(len(x), self._vocab.total, dtype=self.dtype, device=x.device)
        _run(self.bind(x, out))
        return out

    def candidates(self, x: torch.Tensor, count: int) -> Candidates:
        """The ``count`` best tokens, the same on every rank: each rank's best ``count`` + 1, merged.

        A rank's own best are enough: a token that is not among them has as many better ones on that rank alone.
        """
        wanted = count + 1
        if not 1 <= count < self._vocab.total:
            raise ValueError(f"{count} candidates; allowed: 1 to {self._vocab.total - 1}")
        logits, steps = self._local(x)
        _run(steps)
        local = logits.to(torch.float32, copy=True)  # the buffer serves the next forward
        local[:, self._rows.count :] = -torch.inf  # rows that fill up the share are no tokens
        # The share may have fewer rows than are wanted: the rest are places that every token beats.
        values = local.new_full((len(x), wanted), -torch.inf)
        ids = torch.full((len(x), wanted), _NO_TOKEN, dtype=torch.int64, device=x.device)
        found = min(wanted, self._rows.count)
        if found:
            values[:, :found], ids[:, :found] = best(local, found)
            ids[:, :found] += self._rows.start
        return merge(self._gathered(values), self._gathered(ids), count)

    def _local(self, x: torch.Tensor) -> tuple[torch.Tensor, list[Step]]:
        """Where this rank's columns [M, vocab.local] lie in the dtype that they leave in, and the steps to there."""
        shape = (len(x), self._vocab.local)
        local = self._collectives.buffer("logits", shape, torch.float32, x.device)
        steps = [bound.head(x, self._weight, out=local)]
        if self.dtype == torch.float32:
            return local, steps
        sent = self._collectives.buffer("sent", shape, self.dtype, x.device)
        return sent, [*steps, lambda: sent.copy_(local)]

    def _gathered(self, local: torch.Tensor) -> torch.Tensor:
        parts = local.new_empty(self._group.size, *local.shape)
        self._group.all_gather(parts, local)
        return parts.transpose(0, 1).flatten(1)  # [M, size * wanted], in rank order


def _run(steps: list[Step]) -> None:
    for step in steps:
        step()


def _head_format(weight: Weight) -> str:
    """A float16 head is one that the packed kernels take; any other is named as a projection is."""
    found = weight_format(weight)
    return "fp16_head" if found == "fp16" else found


def best(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` largest of each row of ``values`` f32 [M, V] and their columns, best first; ties by column."""
    columns = best_ids_on_device(values, count)
    return values.gather(1, columns), columns


def merge(values: torch.Tensor, ids: torch.Tensor, count: int) -> Candidates:
    """The best ``count`` of gathered candidates [M, n], n > count, and the next; ties by lower token id."""
    by_id = ids.argsort(dim=1, stable=True)
    values, ids = values.gather(1, by_id), ids.gather(1, by_id)
    order = values.sort(dim=1, descending=True, stable=True).indices[:, : count + 1]
    values, ids = values.gather(1, order), ids.gather(1, order)
    return Candidates(values[:, :count].contiguous(), ids[:, :count].contiguous(), values[:, count], ids[:, count])
