"""What lookup is worth on held-out prompts: alone, and joined with the trained draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from engine.llm import LLM
from engine.request import SamplingParams
from engine.run import Round
from engine.steps import draft_block, fusion
from engine.steps.draft import LookupSettings, Match, find_match
from engine.steps.fusion import FusionSettings
from engine.steps.records import PointLaw, Proposal
from engine.training import measure
from suites.tables.carried import Settings, drawn, engine
from suites.tables.table import Table

LOOKUP: dict[str, Any] = {"draft": "lookup", "draft_model": None}
JOINED: dict[str, Any] = {"draft": "dflash2+lookup", "fusion_weak": 3, "fusion_strong": 6, "fusion_agree": 1}


@dataclass
class Counts:
    """Rounds after the first token, by what the lookup did in them."""

    rounds: int = 0
    matches: int = 0
    agreeing: int = 0
    taken: int = 0
    verified: int = 0
    accepted: int = 0
    emitted: int = 0

    def round(self, seen: Round) -> None:
        """See `RoundObserver`."""
        sequence = seen.run.sequence
        if sequence.num_emitted == len(seen.committed.token_ids):
            return
        self.rounds += 1
        self.emitted += len(seen.committed.token_ids)
        points = [isinstance(law, PointLaw) for law in seen.proposal.draft_laws]
        self.taken += any(points)
        self.verified += sum(points)
        self.accepted += sum(points[: len(seen.acceptance.accepted)])


def lookups(settings: Settings) -> Table:
    """How often a lookup finds something, what the model thinks of it, and how much of it is accepted."""
    prompts = measure.held_out_prompts()
    edits = [prompt for prompt in prompts if "\n" in prompt]
    kinds = {
        "questions": [prompt for prompt in prompts if prompt not in edits][: settings.prompts],
        "editing tasks": edits[: settings.prompts],
    }
    rows = []
    for name, how in {"lookup alone": LOOKUP, "DFlash2 joined with lookup": JOINED}.items():
        for kind, asked in kinds.items():
            llm = engine(settings, sequences=len(asked), **how)
            seen = counted(llm, asked, [drawn(settings, seed) for seed in range(len(asked))])
            agreeing = f"{seen.agreeing:,}" if how is JOINED else ""
            rows.append(
                (
                    f"{name}, {kind}",
                    f"{seen.rounds:,}",
                    f"{seen.matches:,}",
                    agreeing,
                    f"{seen.taken:,}",
                    f"{seen.accepted:,} of {seen.verified:,}",
                    f"{seen.emitted / seen.rounds:.2f}",
                )
            )
    joined = ", ".join(f"{name.removeprefix('fusion_')} {JOINED[name]}" for name in sorted(JOINED) if "fusion" in name)
    return Table(
        "Lookup: how often it finds something and what becomes of it",
        (
            "",
            "rounds",
            "with a match",
            "first token drafted too",
            "tokens taken in",
            "looked-up tokens accepted",
            "emitted a round",
        ),
        tuple(rows),
        (f"Held-out prompts, T = 1, top-k 20, top-p 0.95; joined with {joined}. Nothing like it is published.",),
    )


def counted(llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams]) -> Counts:
    """Run the prompts together; every match is counted where it is looked for."""
    counts = Counts()

    def fusing(drafted: Proposal, match: Match | None, how: FusionSettings) -> Proposal:
        if match is not None:
            counts.matches += 1
            counts.agreeing += drafted.token_ids[:1] == match.continuation[:1]
        return fusion.fuse(drafted, match, how)

    def finding(history: Any, width: int, lookup: LookupSettings) -> Match | None:
        match = find_match(history, width, lookup)
        counts.matches += match is not None
        return match

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_block, "fuse", fusing)
        patch.setattr("engine.steps.draft.find_match", finding)
        llm.observer = counts
        llm.generate_batch([llm.chat_prompt(prompt) for prompt in prompts], params)
    llm.observer = None
    return counts
