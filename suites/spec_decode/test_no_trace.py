"""Rejected tokens leave no trace: poison everything that is not committed after every step, and nothing changes.

After each step, every KV row, draft KV row, convolution window and recurrent state that no live sequence has committed
is poisoned: states and values with NaN, keys with zeros, which attention gives some weight. Whatever reads one of them
turns its request into a fault; and what a step writes is seen too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.llm import LLM
from engine.request import SamplingParams
from engine.run import Round
from engine.state.sequence import SequenceState
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.tape import drafting
from suites.spec_decode.texts import COPIES, QUESTIONS, asked, drawn

pytestmark = pytest.mark.group("no trace")

K = 7
PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
PROMPTS = [PROMPT, [70, 71, 72] * 4, [8] * 9, PROMPT[:13]]
NAN = float("nan")


KEYS, VALUES = 0, 1


def by_row(cache: torch.Tensor, which: int) -> torch.Tensor:
    """Keys or values of a cache, [blocks, block_size, layers, heads, dim], a view."""
    return cache[:, :, which].permute(1, 2, 0, 3, 4)


@dataclass
class Poisoner:
    """Keeps account of what is committed, and poisons the rest."""

    llm: LLM
    live: dict[int, SequenceState] = field(default_factory=dict)
    rejected: int = 0

    def round(self, seen: Round) -> None:
        request = seen.run.request.request_id
        self.live[request] = seen.run.sequence
        self.rejected += len(seen.proposal.token_ids) - len(seen.acceptance.accepted)
        if seen.run.finished:
            del self.live[request]

    def committed_rows(self) -> torch.Tensor:
        """Which rows of the caches hold a committed token of a live sequence: bool [blocks, block_size]."""
        pool = self.llm.pool
        rows = torch.zeros(pool.num_blocks, pool.block_size, dtype=torch.bool)
        for sequence in self.live.values():
            for position in range(sequence.num_computed):
                rows[sequence.block_table[position // pool.block_size], position % pool.block_size] = True
        return rows

    def poison(self) -> None:
        """NaN into all that is not committed."""
        free = ~self.committed_rows()
        for cache in self.caches():
            by_row(cache, KEYS)[free] = 0.0
            by_row(cache, VALUES)[free] = NAN
        states = self.llm.model.states
        if states is not None:
            current = {one.recurrent.current for one in self.live.values() if one.recurrent is not None}
            others = [slot for slot in range(1, states._conv.shape[1]) if slot not in current]
            states._conv[:, others] = NAN
            states._matrix[:, others] = NAN

    def caches(self) -> list[torch.Tensor]:
        """[layers, blocks, 2, block_size, heads, dim] each."""
        found = [self.llm.model.cache._data]
        if self.llm.config.draft_is_model:
            found.append(drafting(self.llm).model.cache._data)
        return found


@contextmanager
def poisoned(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Poisoner]:
    poisoner, step = Poisoner(llm), llm.step

    def stepping() -> None:
        step()
        poisoner.poison()

    with monkeypatch.context() as patch:
        patch.setattr(llm, "step", stepping)
        llm.observer = poisoner
        poisoner.poison()
        try:
            yield poisoner
        finally:
            llm.observer = None


ENGINES: dict[str, dict[str, Any]] = {
    "lookup": {"draft": "lookup", "lookup_min": 1},
    "dflash2": {"draft": "dflash2"},
    "dflash2, pipeline": {"draft": "dflash2", "context_pipeline": True},
    "dflash2+lookup": {"draft": "dflash2+lookup", "fusion_weak": 1, "fusion_strong": 2, "fusion_tail": 1},
    "dflash2+lookup, 15 wide": {
        "draft": "dflash2+lookup",
        "fusion_weak": 1,
        "fusion_strong": 2,
        "fusion_tail": 1,
        "draft_tokens": 15,
    },
}


def params_of(temperature: float) -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=count, temperature=temperature, seed=seed, stop_token_ids=())
        for seed, count in enumerate((30, 8, 22, 16))
    ]


@pytest.mark.parametrize("temperature", [0.0, 100.0], ids=["greedy", "hot"])
@pytest.mark.parametrize(("name", "block_size"), [*((name, 3) for name in ENGINES), ("dflash2+lookup", 16)])
def test_poison_changes_no_token(
    name: str,
    block_size: int,
    temperature: float,
    hybrid: Path,
    wide_draft: Path,
    engine_of: EngineOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four requests that come together and leave one after another, against the same ones undisturbed."""
    own = ENGINES[name] if name == "lookup" else {"draft_model": wide_draft, **ENGINES[name]}
    llm = engine_of(hybrid, **{"draft_tokens": K, **own}, max_sequences=4, block_size=block_size)
    expected = llm.generate_batch(PROMPTS, params_of(temperature))
    with poisoned(llm, monkeypatch) as poisoner:
        results = llm.generate_batch(PROMPTS, params_of(temperature))
    assert [result.error for result in results] == [None] * 4
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert [result.emitted for result in results] == [result.emitted for result in expected]
    # A hot request repeats nothing, so there is nothing to look up.
    assert poisoner.rejected > 10 or (name == "lookup" and temperature > 0), "the case has no power"


@pytest.mark.parametrize("name", ENGINES)
def test_poison_on_the_trained_pair(
    name: str,
    quasar: Path,
    quasar_draft: Path,
    engine_of: EngineOf,
    monkeypatch: pytest.MonkeyPatch,
    record: Record,
) -> None:
    """Real acceptance, and requests that end by themselves inside a block."""
    own = ENGINES[name] if name == "lookup" else {"draft_model": quasar_draft, **ENGINES[name]}
    llm = engine_of(quasar, **{"draft_tokens": K, **own}, max_sequences=2, max_model_len=160)
    prompts, params = [asked(COPIES[2]), asked(QUESTIONS[2])], [drawn(30, 1), drawn(20, 2)]
    expected = llm.generate_batch(prompts, params)
    with poisoned(llm, monkeypatch) as poisoner:
        results = llm.generate_batch(prompts, params)
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
    assert poisoner.rejected > 0
    record.metric("drafts rejected", poisoner.rejected, "token")


@pytest.mark.parametrize("name", ["dflash2", "dflash2, pipeline", "dflash2+lookup"])
def test_a_step_writes_its_reserved_rows_alone(
    name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step, rows that were committed before are unchanged bit for bit, and no row outside of the K+1 rows
    after a sequence has lost its poison; nor has block 0.
    """
    own = {"draft_model": wide_draft, "draft_tokens": K, **ENGINES[name]}
    llm = engine_of(hybrid, **own, max_sequences=4, block_size=4)
    step = llm.step
    with poisoned(llm, monkeypatch) as poisoner:
        poisoning_step = llm.step

        def watching() -> None:
            before = poisoner.committed_rows()
            lengths = {request: one.num_computed for request, one in poisoner.live.items()}
            pages = [cache.clone() for cache in poisoner.caches()]
            monkeypatch.setattr(llm, "step", step)
            step()
            left = sum(count for request, count in lengths.items() if request not in poisoner.live)
            allowed = before.clone()
            for request, sequence in poisoner.live.items():
                # A sequence that came in this step has written its prompt; a round writes up to K+1 rows.
                for position in range(lengths.get(request, 0), sequence.num_computed + K + 1):
                    if position // 4 < len(sequence.block_table):
                        allowed[sequence.block_table[position // 4], position % 4] = True
            for cache, old in zip(poisoner.caches(), pages, strict=True):
                for which in (KEYS, VALUES):
                    assert torch.equal(by_row(cache, which)[before], by_row(old, which)[before]), "written again"
                now = by_row(cache, VALUES)
                assert torch.isnan(now[0]).all(), "block 0 was written"
                written = ~torch.isnan(now).flatten(2).all(dim=2)
                # After the commits: rows of tables that were cut, and of requests that left in this step.
                assert int((written & ~allowed).sum()) <= len(PROMPTS) * (K + 1) + left
            poisoner.poison()
            monkeypatch.setattr(llm, "step", watching)

        assert poisoning_step is not step
        monkeypatch.setattr(llm, "step", watching)
        results = llm.generate_batch(PROMPTS, params_of(100.0))
    assert [len(result.token_ids) for result in results] == [30, 8, 22, 16]


def test_the_poison_would_show(hybrid: Path, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: one committed row poisoned as well ends the request with a fault that names its position."""
    llm = engine_of(hybrid, draft="lookup", lookup_min=1, max_sequences=4)
    with poisoned(llm, monkeypatch) as poisoner:
        original = poisoner.committed_rows

        def forgetting() -> torch.Tensor:
            rows = original()
            if rows.any():
                rows[tuple(np.argwhere(rows.numpy())[0])] = False
            return rows

        monkeypatch.setattr(poisoner, "committed_rows", forgetting)
        result = llm.generate(PROMPT, SamplingParams(max_tokens=8, stop_token_ids=()))
    assert result.finish_reason == "error"
    assert "not finite" in str(result.error)
