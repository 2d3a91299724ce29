"""Which drafter a config asks for, and what follows the target for it."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.model.draft_runner import DraftRunner
from engine.model.runner import ModelRunner
from engine.state.candidates import CandidateCache
from engine.steps.context import Context, DraftContext, NoContext
from engine.steps.draft import Drafter, LookupDrafter, LookupSettings
from engine.steps.draft_block import BlockDrafter, LookupFusion
from engine.steps.fusion import FusionSettings


def make_drafter(config: EngineConfig, draft: DraftRunner | None) -> Drafter:
    """The drafter of ``config``; ``draft`` is its draft model, where it has one."""
    if draft is None:
        looks_up = config.draft_looks_up
        return LookupDrafter(LookupSettings(config.lookup_min, config.lookup_max) if looks_up else None)
    width = draft.model.config.selector_top_k
    cache = CandidateCache(config.max_sequences, config.draft_tokens, width)
    return BlockDrafter(draft, cache, _fusion(config) if config.draft_looks_up else None)


def make_context(config: EngineConfig, runner: ModelRunner, draft: DraftRunner | None) -> Context:
    """What keeps the context of the draft model, where there is one."""
    if draft is None:
        return NoContext()
    return DraftContext(runner, draft, pipeline=config.context_pipeline, full_rows=config.verify_width)


def _fusion(config: EngineConfig) -> LookupFusion:
    fusion = FusionSettings(config.fusion_weak, config.fusion_strong, config.fusion_agree, config.fusion_tail)
    shortest = min(config.fusion_weak, config.fusion_tail)
    return LookupFusion(LookupSettings(shortest, config.lookup_max), fusion)
