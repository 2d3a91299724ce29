"""What crosses from one step to the next. Each record is frozen and complete when it is built.

The flow: ``Proposal`` (draft) -> ``Verification`` (verify, or prefill for a first token) -> ``Acceptance`` (reject)
-> ``Committed`` (commit).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.random import Purpose
from engine.sampling.random import unit_interval as unit_interval

_EPSILON = float(np.finfo(np.float64).eps)


class Noise(Protocol):
    """The random numbers of one request: 64 bits by position and purpose, the same whenever they are asked for."""

    def bits(self, position: int, purpose: Purpose) -> int:
        """64 random bits."""

    def uniform(self, position: int, purpose: Purpose) -> float:
        """The same bits as a number in the open interval (0, 1)."""


class TargetLaw(Protocol):
    """The law of one token under the target, after temperature and cutoffs."""

    def probability(self, token_id: int) -> float:
        """Probability of one token, in fp64."""

    def draw(self, random_bits: int) -> int:
        """One token."""

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """The law of the token that replaces a rejected one: max(target - draft, 0), scaled to 1.

        Where rounding leaves nothing of it, the target itself: target and draft were the same.
        """


@dataclass(frozen=True, slots=True, eq=False)
class TokenLaw:
    """A law written out: ``probs`` fp64, one a token of ``token_ids`` (int64, ascending); other tokens have none."""

    token_ids: npt.NDArray[np.int64]
    probs: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.token_ids.shape != self.probs.shape or self.probs.ndim != 1 or not len(self.probs):
            raise ValueError(
                f"a law of ids {self.token_ids.shape} and probs {self.probs.shape}; allowed: both [n], n > 0"
            )
        if (self.token_ids[1:] <= self.token_ids[:-1]).any():
            raise ValueError("the token ids of a law must ascend, each once")
        # Rounding of n terms that sum to 1, each within half an ulp; the factor 4 leaves room for the division.
        if not self.probs.min() >= 0 or not abs(self.probs.sum() - 1) <= 4 * len(self.probs) * _EPSILON:
            raise ValueError(f"the probs of a law sum to {self.probs.sum()}; allowed: none below 0, together 1")

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`."""
        index = int(self.token_ids.searchsorted(token_id))
        found = index < len(self.token_ids) and self.token_ids[index] == token_id
        return float(self.probs[index]) if found else 0.0

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`: the first token, by id, at which the running sum passes the random number."""
        running = self.probs.cumsum()
        index = int(running.searchsorted(unit_interval(random_bits) * running[-1], side="right"))
        # The product can round up to the whole sum; the last token that has any mass is then the one.
        return int(self.token_ids[min(index, int(np.flatnonzero(self.probs)[-1]))])

    def residual(self, draft: DraftLaw) -> TokenLaw:
        """See `TargetLaw`."""
        where = np.minimum(draft.token_ids.searchsorted(self.token_ids), len(draft.token_ids) - 1)
        theirs = np.where(draft.token_ids[where] == self.token_ids, draft.probs[where], 0.0)
        left = np.maximum(self.probs - theirs, 0.0)
        total = left.sum()
        return TokenLaw(self.token_ids, left / total) if total > 0 else self


@dataclass(frozen=True, slots=True)
class PointLaw:
    """All mass on one token: a looked-up draft, or the target of a greedy request."""

    token_id: int

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """As a `TokenLaw` has them."""
        return np.array([self.token_id])

    @property
    def probs(self) -> npt.NDArray[np.float64]:
        """As a `TokenLaw` has them."""
        return np.ones(1)

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`."""
        return float(token_id == self.token_id)

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`; nothing is random here."""
        return self.token_id

    def residual(self, draft: DraftLaw) -> PointLaw:
        """See `TargetLaw`; no draft can have more than all the mass on the token, so it stays there."""
        return self


DraftLaw = PointLaw | TokenLaw


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafted tokens and, for each, the law that it was drawn from. Who drew a token owns its probability.

    ``draft_laws[i]`` may depend on the history and on ``token_ids[:i]`` only. K is ``len(token_ids)``; with 0
    the round is plain decode.
    """

    token_ids: tuple[int, ...] = ()
    draft_laws: tuple[DraftLaw, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.draft_laws):
            raise ValueError(
                f"{len(self.token_ids)} drafted tokens with {len(self.draft_laws)} laws; allowed: one each"
            )
        for token_id, law in zip(self.token_ids, self.draft_laws, strict=True):
            if not law.probability(token_id) > 0:
                raise ValueError(f"token {token_id} was drafted but its law gives it no probability")


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """What the target says about each token of a round: ``target_laws[i]`` is the law of position first_position + i.

    There are K+1 of them: one for each drafted token, one for the bonus token. ``head_logits`` f32 [K+1, V] are a copy
    of what the head gave, where log probabilities are to be reported.
    """

    first_position: int
    target_laws: tuple[TargetLaw, ...]
    head_logits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if not self.target_laws:
            raise ValueError("a verification without rows; allowed: K+1 rows, one at least")


@dataclass(frozen=True, slots=True)
class Fault:
    """In place of a verification: no token may be drawn for this request, and why."""

    reason: str


class LastToken(StrEnum):
    """Where the last token of a round comes from."""

    BONUS = "bonus"  # every draft was accepted; drawn from the row after them
    RECOVERED = "recovered"  # replaces the first rejected draft


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a round emits: the accepted prefix of the drafts and one token more."""

    accepted: tuple[int, ...]
    last: int
    source: LastToken

    @property
    def emitted(self) -> tuple[int, ...]:
        """1 to K+1 tokens."""
        return (*self.accepted, self.last)


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop token, which is part of the tokens
    LENGTH = "length"  # max_tokens, or the context is full
    ABORTED = "aborted"  # the caller went away; the result holds what there was
    ERROR = "error"  # no further token can be drawn; the result says why


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of an acceptance: the tokens that are now history, and whether the request ended with them."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
