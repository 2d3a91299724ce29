"""The carried model as the tables run it: which engine, which prompts, how much of both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.bundled import quasar_tiny_draft_path, quasar_tiny_path
from engine.request import SamplingParams
from engine.training import measure
from engine.training.batches import Batch
from engine.training.target import Target

# What the published rounds were drawn under.
LAW: dict[str, Any] = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}
K = 7


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is run. ``threads`` None: every core allowed."""

    threads: int | None = None
    max_tokens: int = 128
    prompts: int = 16  # held-out ones, of a table's kind
    seeds: int = 100_000
    repeats: int = 3


def engine(settings: Settings, *, sequences: int = 1, **more: Any) -> LLM:
    """The carried target with the carried draft, K = 7; ``more`` goes to the engine's config."""
    return LLM(
        EngineConfig(
            model=quasar_tiny_path(),
            threads=settings.threads,
            max_model_len=640,
            max_sequences=sequences,
            draft_tokens=K,
            **{"draft": "dflash2", "draft_model": quasar_tiny_draft_path(), **more},
        )
    )


def drawn(settings: Settings, seed: int) -> SamplingParams:
    """A request under the published law, seeded."""
    return SamplingParams(max_tokens=settings.max_tokens, seed=seed, **LAW)


def evenly(prompts: Sequence[str], count: int) -> list[str]:
    """``count`` of them, from the whole of the list: it has its kinds one after the other."""
    return list(prompts[:: max(1, len(prompts) // count)][:count])


@functools.cache
def held_out() -> tuple[Target, list[Batch]]:
    """The target as numbers, for whole texts at once, and the held-out conversations; loaded once."""
    return measure.stored_target(quasar_tiny_path()), measure.held_out_batches(quasar_tiny_path())
