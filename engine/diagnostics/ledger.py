"""A ledger of verification: what rounds emitted, and whether the dense form decides as the engine did.

Each round is decided a second time from the whole rows of logits, with the same random numbers. A compact row must hold
every token that the whole row can draw; one that it lacks is a required candidate that the search missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.llm import LLM
from engine.run import Round
from engine.sampling.rules import NO_RULES
from engine.steps.laws import LogitsLaw, verification_of
from engine.steps.records import Fault, Verification
from engine.steps.reject import reject
from engine.steps.sparse import SparseLaw


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One round of one request, named by the position of the first token it decides about."""

    request_id: int
    first_position: int
    drafts: int
    emitted: tuple[int, ...]
    dense_emitted: tuple[int, ...]
    sparse_rows: int
    missed_candidates: tuple[int, ...]

    @property
    def dense_agrees(self) -> bool:
        """Whether the dense form emits the same tokens."""
        return self.emitted == self.dense_emitted


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The sum over independent rounds. ``counts[n]`` rounds emitted n tokens."""

    rounds: int
    counts: dict[int, int]
    dense_decisions: int
    sparse_rows: int
    required_candidate_misses: int
    first_disagreement: LedgerEntry | None


class VerifierLedger:
    """An observer that decides every round again. It costs a dense verification a round: never time beside it."""

    def __init__(self, llm: LLM) -> None:
        """Observe ``llm`` from now on. Raises ``RuntimeError`` when somebody observes it already."""
        if llm.observer is not None:
            raise RuntimeError(f"the engine is observed by {llm.observer!r} already; set its observer to None first")
        self._runner = llm.runner
        self.entries: list[LedgerEntry] = []
        llm.observer = self

    def round(self, seen: Round) -> None:
        """See `RoundObserver`. The end of a prompt is no round."""
        if seen.run.sequence.num_emitted == len(seen.committed.token_ids):
            return
        logits = self.logits_of(seen)
        # What the request's rules change was changed in these logits before the round was decided.
        params = replace(seen.run.request.params, rules=NO_RULES, logprobs=None)
        first = seen.verification.first_position
        dense = verification_of(first, logits, params)
        if isinstance(dense, Fault):
            raise RuntimeError(f"position {first} was decided but the dense form says: {dense.reason}")
        sparse, missed = _missed(seen.verification, dense)
        self.entries.append(
            LedgerEntry(
                request_id=seen.run.request.request_id,
                first_position=first,
                drafts=len(seen.proposal.token_ids),
                emitted=seen.acceptance.emitted,
                dense_emitted=reject(seen.proposal, dense, seen.run.noise).emitted,
                sparse_rows=sparse,
                missed_candidates=missed,
            )
        )

    def logits_of(self, seen: Round) -> torch.Tensor:
        """The rows of this request in the last forward."""
        start = 0
        for rows in self._runner.last_batch:
            if rows.block_table is seen.run.sequence.block_table:
                return self._runner.last_logits[start : start + rows.num_logits]
            start += rows.num_logits
        raise RuntimeError(
            f"request {seen.run.request.request_id} was not in the last forward; observe the engine's own"
        )

    def report(self) -> LedgerReport:
        """The sum so far."""
        return summarise(independent(self.entries))


def independent(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Each round once, whoever wrote it down: the ranks of one group see the same round and are no further samples.

    Raises ``ValueError`` when two records of one round differ: then the ranks did not decide alike.
    """
    known: dict[tuple[int, int], LedgerEntry] = {}
    for entry in entries:
        key = entry.request_id, entry.first_position
        other = known.setdefault(key, entry)
        if other != entry:
            raise ValueError(f"two records of request {key[0]}, position {key[1]} differ: {other} and {entry}")
    return list(known.values())


def summarise(entries: Sequence[LedgerEntry]) -> LedgerReport:
    """Counts over rounds that are independent already."""
    counts: dict[int, int] = {}
    for entry in entries:
        counts[len(entry.emitted)] = counts.get(len(entry.emitted), 0) + 1
    return LedgerReport(
        rounds=len(entries),
        counts=dict(sorted(counts.items())),
        dense_decisions=sum(entry.dense_agrees for entry in entries),
        sparse_rows=sum(entry.sparse_rows for entry in entries),
        required_candidate_misses=sum(len(entry.missed_candidates) for entry in entries),
        first_disagreement=next((entry for entry in entries if not entry.dense_agrees), None),
    )


def _missed(decided: Verification, dense: Verification) -> tuple[int, tuple[int, ...]]:
    """Compact rows, and the tokens that a whole row can draw and its compact row does not hold."""
    rows, missed = 0, []
    for law, whole in zip(decided.target_laws, dense.target_laws, strict=True):
        if isinstance(law, SparseLaw) and isinstance(whole, LogitsLaw):
            rows += 1
            required, _ = whole.support()
            missed += np.setdiff1d(required, law.token_ids).tolist()
    return rows, tuple(missed)
