"""Rounds of a whole engine judged three times: by the engine, in the dense form (the ledger), and in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.diagnostics.ledger import VerifierLedger
from engine.llm import LLM
from engine.request import SamplingParams
from engine.run import Round
from engine.sampling.random import Purpose
from suites.oracles import sampling as oracle
from suites.oracles.arrays import F64
from suites.oracles.spec_rejection import judge


@dataclass
class Judge:
    """Decides each round a third time, in fp64 from the logits; then hands it on to the ledger."""

    llm: LLM
    ledger: VerifierLedger
    judged: int = 0
    explained: int = 0  # rounds in which a decision is nearer than the integer weights' band
    nearest: float = np.inf  # the nearest that any decision was to another one, as a probability
    wrong: list[str] = field(default_factory=list)

    def round(self, seen: Round) -> None:
        """See `RoundObserver`."""
        before = len(self.ledger.entries)
        self.ledger.round(seen)
        if len(self.ledger.entries) == before:
            return
        self.judged += 1
        params, drafts = seen.run.request.params, len(seen.proposal.token_ids)
        logits = self.ledger.logits_of(seen).numpy()
        vocab = logits.shape[1]
        targets = [_cut(row, params) for row in logits]
        laws = [_written(law.token_ids, law.probs, vocab) for law in seen.proposal.draft_laws]
        noise, first = seen.run.noise, seen.verification.first_position
        steps = range(first, first + drafts)
        expected = judge(
            targets,
            seen.proposal.token_ids,
            laws,
            [noise.uniform(position, Purpose.ACCEPT) for position in steps],
            [noise.uniform(position, Purpose.RECOVER) for position in steps],
            noise.uniform(first + drafts, Purpose.TARGET),
        )
        self.nearest = min(self.nearest, expected.margin)
        if expected.emitted != seen.acceptance.emitted:
            if expected.margin <= float(oracle.fixed_point_band(vocab)):
                self.explained += 1
            else:
                self.wrong.append(f"position {first}: {seen.acceptance.emitted}, fp64 says {expected}")


def watched(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Judge:
    """Run the requests together with every round judged."""
    judge_of_all = Judge(llm, VerifierLedger(llm))
    llm.observer = judge_of_all
    try:
        llm.generate_batch(prompts, params)
    finally:
        llm.observer = None
    return judge_of_all


def _cut(row: np.ndarray, params: SamplingParams) -> F64:
    ranking = oracle.rank(oracle.after_temperature(row, params.temperature), params.top_k)
    return ranking.probabilities(float(np.float32(params.top_p)), len(row))


def _written(token_ids: Any, probs: Any, vocab: int) -> F64:
    out = np.zeros(vocab)
    out[token_ids] = probs
    return out
