"""The engine that an arm asks for, and what it generates: the same in a worker and on a rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites.latency import turns
from suites.latency.arms import ENGINE_FIELDS, Arm, load_prompts

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.parallel.group import Group
    from suites.latency.turns import Turns

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 1024
WARMING_TOKENS = 4  # the first touch of the weights is no part of a time to the first token


def load(arm: Arm, batch: int = 1, group: Group | None = None) -> LLM:
    """The engine that ``arm`` asks for (a rank's of ``group``), with room for ``batch`` sequences at a time."""
    # Here and not above: `--list`, `--fitness` and a wrong arm name answer without loading torch.
    from engine.config import EngineConfig, read_environment
    from engine.llm import LLM

    same: dict[str, Any] = {name: getattr(arm, name) for name in ENGINE_FIELDS if name not in ("model", "draft_model")}
    config = EngineConfig(
        model=ROOT / arm.model if arm.model else read_environment(os.environ).model,
        draft_model=ROOT / arm.draft_model if arm.draft_model else None,
        max_model_len=CONTEXT,
        kv_cache_tokens=batch * (CONTEXT + arm.draft_tokens + 1),
        **same,
    )
    return LLM(config, group)


def measured(llm: LLM, arm: Arm, shared: Turns | None) -> dict[str, Any]:
    """The runs of one arm and, where turns are taken, every wait among them and the steps made without the other."""
    if shared is None:
        return {"runs": _runs(llm, arm)}
    waits, alone = len(shared.waits), shared.alone
    runs = _runs(llm, arm)
    turn = {"steps": turns.STEPS, "waits": shared.waits[waits:], "alone": shared.alone - alone}
    return {"runs": runs, "turns": turn}


def _runs(llm: LLM, arm: Arm) -> list[dict[str, Any]]:
    from engine.request import SamplingParams

    def params(max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=arm.temperature, top_k=arm.top_k, top_p=arm.top_p, seed=arm.seed, max_tokens=max_tokens
        )

    prompts = {name: llm.chat_prompt(message) for name, message in load_prompts(arm.prompts).items()}
    names = list(prompts)
    llm.generate(prompts[names[0]], params(WARMING_TOKENS))
    runs = []
    for start in range(0, len(names), arm.batch):
        together = names[start : start + arm.batch]
        results = llm.generate_batch([prompts[name] for name in together], params(arm.max_tokens))
        runs += [
            {
                "prompt": name,
                "token_ids": result.token_ids,
                "finish": str(result.finish_reason),
                "arrival_ts": result.arrival_ts,
                "token_ts": result.token_ts,
                "emitted": result.emitted,
            }
            for name, result in zip(together, results, strict=True)
        ]
    return runs
