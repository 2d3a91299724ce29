"""The sparse form of a target law: the tokens that the cutoffs can keep, taken out of the row; the others have none.

Cutting and drawing take place on the compact row with the arithmetic of the dense form, which looks at values and at
the order of ids alone. So both forms make the same decision from the same random numbers, token for token. All rows of
a request come to the host in one read, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.request import SamplingParams
from engine.sampling.rules import NO_RULES
from engine.steps.records import DraftLaw, PointLaw, TargetLaw, TokenLaw

LIMIT = 64
"""Tokens of a compact row at most: top-k up to this."""

_NOBODY = -1


class RowLaw(Protocol):
    """A law over the places of a compact row."""

    def probability(self, token_id: int) -> float:
        """Of one place."""

    def draw(self, random_bits: int) -> int:
        """One place."""

    def without(self, token_id: int) -> RowLaw:
        """The law without one place; -1 takes nothing out."""

    def support(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The places that have any probability, ascending, and their probabilities."""


@dataclass(frozen=True, slots=True, eq=False)
class CompactRow:
    """Tokens of one row, ids int64 [n] ascending, and their logits f32 [n] as the row has them."""

    token_ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SparseLaw:
    """A target law whose tokens are those of a compact row."""

    token_ids: npt.NDArray[np.int64]
    row: RowLaw

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`."""
        place = self._place(token_id)
        return 0.0 if place == _NOBODY else self.row.probability(place)

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`."""
        return int(self.token_ids[self.row.draw(random_bits)])

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """See `TargetLaw`."""
        if isinstance(draft, PointLaw):
            return SparseLaw(self.token_ids, self.row.without(self._place(draft.token_id)))
        places, probs = self.row.support()
        return TokenLaw(self.token_ids[places], probs).residual(draft)

    def _place(self, token_id: int) -> int:
        place = int(np.searchsorted(self.token_ids, token_id))
        return place if place < len(self.token_ids) and self.token_ids[place] == token_id else _NOBODY


def sparse_refusal(params: SamplingParams) -> str | None:
    """Why a request cannot be verified in the sparse form, or None: what the compact rows would not hold."""
    if params.greedy:
        return "temperature 0: greedy rows need their maximum alone"
    if not 1 <= params.top_k <= LIMIT:
        return f"top-k is {params.top_k}; allowed: 1 to {LIMIT}"
    if params.rules != NO_RULES:
        return "bias, bans, penalties or min-p are asked for: they concern tokens outside the compact rows"
    if params.logprobs is not None:
        return "log probabilities are asked for: they are of whole rows"
    return None


def compact_rows(logits: torch.Tensor, params: SamplingParams) -> list[CompactRow | None]:
    """The candidates of each row of ``logits`` f32 [rows, V]: every token that ties with the k-th best or beats it.

    Ties are decided after the division by temperature, as the cutoffs decide them. None for a row with more candidates
    than `LIMIT`, or whose maximum over temperature is not finite: the dense form then cuts it, or says what is wrong.
    """
    probe = min(logits.shape[1], LIMIT + 1)
    values, ids = torch.topk(logits, probe, dim=1)
    # One tensor, so that one read brings it to the host; ids and fp32 values are exact in fp64.
    read = torch.stack((values.double(), ids.double())).cpu().numpy()
    return [_compact_row(*row, params, whole=probe == logits.shape[1]) for row in zip(read[0], read[1], strict=True)]


def _compact_row(
    values: npt.NDArray[np.float64], ids: npt.NDArray[np.float64], params: SamplingParams, whole: bool
) -> CompactRow | None:
    with np.errstate(over="ignore"):
        quotients = values.astype(np.float32) / np.float32(params.temperature)
    if not np.isfinite(quotients[0]):
        return None
    candidates = quotients >= quotients[min(params.top_k, len(quotients)) - 1]
    if candidates.all() and not whole:
        return None
    chosen = ids[candidates].astype(np.int64)
    order = np.argsort(chosen)
    return CompactRow(chosen[order], values[candidates][order].astype(np.float32))


def padded(rows: Sequence[CompactRow]) -> torch.Tensor:
    """The logits of ``rows`` f32 [rows, widest]; after a row's own there is -inf, which is never drawn."""
    logits = np.full((len(rows), max(len(row.logits) for row in rows)), -np.inf, np.float32)
    for place, row in zip(logits, rows, strict=True):
        place[: len(row.logits)] = row.logits
    return torch.from_numpy(logits)
