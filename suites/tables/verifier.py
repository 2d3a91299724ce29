"""The verifier's ledger over real rounds: are all tokens there that a row can draw, does every form decide alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from engine.llm import LLM
from engine.model.draft_runner import DraftBlock, DraftRunner
from engine.model.selector import Lattice
from engine.request import SamplingParams
from engine.steps.draft_block import BlockDrafter
from engine.training import measure
from suites.spec_decode.judging import Judge, watched
from suites.tables.carried import K, Settings, drawn, engine, evenly
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table


class DraftRows:
    """Counts drafted rows whose candidates are not the best of the whole row of logits."""

    def __init__(self, runner: DraftRunner) -> None:
        self._runner, self._draft = runner, runner.draft
        self.rows = self.misses = 0

    def draft(self, batch: Sequence[DraftBlock]) -> Lattice:
        """In place of the runner's own."""
        lattice = self._draft(batch)
        candidates = lattice.candidate_ids.reshape(-1, lattice.candidate_ids.shape[-1])
        logits = self._runner._outputs.logits[: len(candidates)].numpy()
        best = np.argsort(-logits, axis=1, kind="stable")[:, : candidates.shape[1]]
        self.rows += len(candidates)
        self.misses += sum(len(np.setdiff1d(*pair)) for pair in zip(best, candidates, strict=True))
        return lattice


def ledger(settings: Settings) -> Table:
    """Required candidates and decisions of rounds under the published law, in the sparse form."""
    prompts = evenly(measure.held_out_prompts(), settings.prompts)
    llm = engine(settings, sequences=len(prompts), rejection="sparse")
    seen, drafted = observed(
        llm,
        [llm.chat_prompt(prompt) for prompt in prompts],
        [drawn(settings, seed) for seed in range(len(prompts))],
    )
    report = seen.ledger.report()
    counts = [report.counts.get(count, 0) for count in range(1, K + 2)]
    theirs = published("precision")["verifier_rows"]
    rows = (
        ("target rows in the sparse form", f"{report.sparse_rows:,}", "465"),
        ("drafted rows", f"{drafted.rows:,}", "70"),
        (
            "required candidates missed",
            f"{report.required_candidate_misses + drafted.misses:,}",
            f"{theirs['required_candidate_misses']} of {theirs['rows']} rows",
        ),
        ("independent rounds", f"{report.rounds:,}", f"{theirs['rejection_rounds_matching_dense']}"),
        (
            "decided alike in the dense form",
            f"{report.dense_decisions:,}",
            f"{theirs['rejection_rounds_matching_dense']}",
        ),
        ("decided alike in fp64", f"{seen.judged - seen.explained - len(seen.wrong):,}", ""),
        ("near ties that fp64 decides otherwise", f"{seen.explained:,}", ""),
        ("nearest decision, as a probability", f"{seen.nearest:.1e}", ""),
        ("rounds that emitted 1, 2, … 8 tokens", ", ".join(map(str, counts)), "all of 1 to 8"),
    )
    if seen.wrong:
        raise RuntimeError(f"{len(seen.wrong)} rounds were decided otherwise than in fp64; the first: {seen.wrong[0]}")
    return Table(
        "Verifier: required candidates, and decisions made again",
        ("", "here", PUBLISHED),
        rows,
        (
            f"{len(prompts)} held-out prompts, T = 1, top-k 20, top-p 0.95, K = 7, up to {settings.max_tokens} tokens.",
            "A target row must hold every token that its whole row can draw, a drafted row the best 16 of its own.",
        ),
    )


def observed(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> tuple[Judge, DraftRows]:
    """Every round judged, every drafted row counted."""
    assert isinstance(llm._drafter, BlockDrafter)
    runner = llm._drafter.runner
    drafted = DraftRows(runner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "draft", drafted.draft)
        return watched(llm, prompts, params), drafted
