"""How a model's sizes are divided over ranks: heads and vocabulary. Pure: integers in, records out. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InputError
from engine.parallel.shards import Rows


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Grouped-query heads over ``tp`` ranks: whole KV groups, the last of which may be made of zeros.

    A group of zeros projects to zero queries, keys and values, attends to zeros and meets zero columns of the output
    projection: it adds exactly 0 to the residual stream, and costs what a real group costs.
    """

    num_heads: int
    num_kv_heads: int
    tp: int
    padded_kv_heads: int

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def padded_heads(self) -> int:
        """Query heads of all ranks, with those of zero groups."""
        return self.padded_kv_heads * self.heads_per_group

    @property
    def local_kv_heads(self) -> int:
        """KV heads of one rank, zero ones included."""
        return self.padded_kv_heads // self.tp

    @property
    def local_heads(self) -> int:
        """Query heads of one rank, zero ones included."""
        return self.local_kv_heads * self.heads_per_group

    def kv_rows(self, rank: int) -> Rows:
        """The KV heads of the checkpoint that ``rank`` holds; fewer than ``local_kv_heads`` where the rest is zero."""
        start = min(rank * self.local_kv_heads, self.num_kv_heads)
        return Rows(start, min((rank + 1) * self.local_kv_heads, self.num_kv_heads))

    def query_rows(self, rank: int) -> Rows:
        """The query heads of the checkpoint that ``rank`` holds."""
        kv = self.kv_rows(rank)
        return Rows(kv.start * self.heads_per_group, kv.stop * self.heads_per_group)


def split_heads(num_heads: int, num_kv_heads: int, tp: int, *, pad: bool, may_pad: bool = True) -> HeadSplit:
    """Divide heads over ranks; ``may_pad``: the model can have heads of zeros, ``pad``: it shall.

    Raises ``InputError`` where ``tp`` does not divide them and ``pad`` is not asked for.
    """
    if num_kv_heads % tp == 0:
        return HeadSplit(num_heads, num_kv_heads, tp, num_kv_heads)
    padded = -(-num_kv_heads // tp) * tp
    waste = 100 * (padded - num_kv_heads) // num_kv_heads
    mostly_zeros = padded >= 2 * num_kv_heads
    if not pad or not may_pad:
        offer = f", or --pad-heads (groups of zero heads up to {padded}, {waste} % more attention)"
        raise InputError(
            f"{num_heads} query heads over {num_kv_heads} KV heads at TP {tp}: {tp} does not divide {num_kv_heads}; "
            f"allowed: a TP that does{offer if may_pad and not mostly_zeros else ''}"
        )
    if mostly_zeros:
        raise InputError(
            f"{num_kv_heads} KV heads at TP {tp}: padding to {padded} would leave half of the heads zero or more; "
            f"allowed: a TP up to {2 * num_kv_heads - 1}"
        )
    return HeadSplit(num_heads, num_kv_heads, tp, padded)


@dataclass(frozen=True, slots=True)
class VocabSplit:
    """Vocabulary rows over ``tp`` ranks, contiguous; the last ranks' rows may reach beyond ``total`` and are zero."""

    total: int
    tp: int

    @property
    def local(self) -> int:
        """Rows that every rank stores."""
        return -(-self.total // self.tp)

    def rows(self, rank: int) -> Rows:
        """Token ids whose rows ``rank`` holds."""
        start = min(rank * self.local, self.total)
        return Rows(start, min(start + self.local, self.total))
