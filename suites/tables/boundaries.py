"""The context pipeline on and off over the carried model: how many boundaries, of what kind, and every bit of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from engine.steps.context import ADMITTED
from engine.training import measure
from suites.spec_decode.tape import Tape, assert_same_tape, recorded
from suites.tables.carried import K, Settings, drawn, engine, evenly
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table

PROMPTS, TOKENS = 4, 48


def pipeline(settings: Settings) -> Table:
    """One request after another, ahead of acceptance and after it, compared tensor by tensor."""
    prompts = evenly(measure.held_out_prompts(), min(PROMPTS, settings.prompts))
    boundaries, tensors, emitted = 0, 0, Counter[int]()
    for seed, prompt in enumerate(prompts):
        (behind, _), (ahead, ran_ahead) = (_run(settings, prompt, seed, flag) for flag in (False, True))
        tensors += assert_same_tape(behind, ahead)
        boundaries += ran_ahead
        emitted.update(len(one.committed.token_ids) for one in ahead.rounds[1:] if len(one.proposal.token_ids) == K)
    counts = ", ".join(str(emitted[count]) for count in range(1, K + 2))
    theirs = str(published("precision")["context_pipeline_boundaries_bitwise_equal"])
    return Table(
        "Context pipeline: request boundaries with it on and off",
        ("", "here", PUBLISHED),
        (
            ("boundaries that ran ahead", f"{boundaries:,}", theirs),
            ("of them bitwise equal", f"{boundaries:,}", theirs),
            ("rounds of K drafts that emitted 1, 2, … 8 tokens", counts, "2, 3, 4, 6, 7 and 8 seen"),
            ("tensors compared bit for bit", f"{tensors:,}", ""),
        ),
        (
            f"{len(prompts)} held-out prompts one by one, T = 1, top-k 20, top-p 0.95, {TOKENS} tokens at most.",
            "Compared are target states, fc outputs, draft inputs, candidates, lattice, laws, counts, all KV pages and",
            "the random numbers asked for; a bit that differs ends the command with its name.",
        ),
    )


def _run(settings: Settings, prompt: str, seed: int, flag: bool) -> tuple[Tape, int]:
    llm = engine(settings, context_pipeline=flag, kv_cache_tokens=256)
    with pytest.MonkeyPatch.context() as patch, recorded(llm, patch) as tape:
        llm.generate(llm.chat_prompt(prompt), replace(drawn(settings, seed), max_tokens=TOKENS))
    return tape, llm.context.rounds[ADMITTED]
