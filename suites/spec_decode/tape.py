"""Everything that a step of an engine with a draft model leaves behind, step by step, and where two engines differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.llm import LLM
from engine.model.draft_runner import DraftBlock, DraftRunner
from engine.model.runner import SequenceRows
from engine.model.selector import Lattice
from engine.run import Round
from engine.sampling import random
from engine.sampling.random import Purpose
from engine.steps.draft_block import BlockDrafter
from suites.oracles.judge import assert_bits_equal

Array = npt.NDArray[Any]
CANARY = -77.0
ThingT = TypeVar("ThingT")


def drafting(llm: LLM) -> DraftRunner:
    """The engine's draft model."""
    assert isinstance(llm._drafter, BlockDrafter)
    return llm._drafter.runner


@dataclass
class Tape:
    """What was recorded, as lists of (what, array) in order. ``rounds`` are the engine's own records of them."""

    llm: LLM
    entries: list[tuple[str, Array]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def note(self, what: str, value: torch.Tensor | Array | Sequence[Any]) -> None:
        """A copy of ``value``."""
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        self.entries.append((what, array.copy()))

    def round(self, seen: Round) -> None:
        """See `RoundObserver`."""
        self.rounds.append(seen)
        self.note("proposed tokens", seen.proposal.token_ids)
        for law in seen.proposal.draft_laws:
            self.note("proposal law: ids", law.token_ids)
            self.note("proposal law: probabilities", law.probs)
        self.note("accepted", [len(seen.acceptance.accepted)])
        self.note("emitted", seen.committed.token_ids)
        self.note("computed tokens", [seen.run.sequence.num_computed])
        self.note("block table", seen.run.sequence.block_table)

    def pages(self) -> None:
        """All caches, whole: what nobody wrote to is compared as well."""
        model, draft = self.llm.model, drafting(self.llm)
        self.note("KV pages", model.cache._data)
        self.note("draft KV pages", draft.model.cache._data)
        if model.states is not None:
            self.note("convolution windows", model.states._conv)
            self.note("recurrent states", model.states._matrix)


@contextmanager
def recorded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tape]:
    """Record all steps until the end of the block. The caches are filled with a canary before."""
    tape, draft = Tape(llm), drafting(llm)
    llm.model.cache._data.fill_(CANARY)
    draft.model.cache._data.fill_(CANARY)
    step, propose, store, bits = llm.step, draft.draft, draft.store_context, random.random_bits

    def stepping() -> None:
        step()
        tape.pages()

    def proposing(batch: Sequence[DraftBlock]) -> Lattice:
        lattice = propose(batch)
        rows = len(batch) * draft.block_size
        tape.note("draft input ids", draft._inputs.token_ids[:rows])
        tape.note("draft input positions", draft._inputs.positions[:rows])
        tape.note("draft input slots", draft._inputs.slot_mapping[:rows])
        drafts = len(batch) * draft.max_drafts
        tape.note("draft hidden rows", draft._outputs.hidden[:drafts])
        tape.note("draft logits", draft._outputs.logits[:drafts])
        tape.note("candidates", lattice.candidate_ids)
        tape.note("unary scores", lattice.unary)
        tape.note("lattice", lattice.scores)
        return lattice

    def storing(batch: Sequence[SequenceRows], kept: Sequence[int]) -> None:
        rows = sum(len(one.token_ids) for one in batch)
        tape.note("target states at the taps", llm.runner.taps.rows[:rows])
        tape.note("fc outputs", draft._context.features[:rows])
        tape.note("context keys", draft._context.keys[:rows])
        tape.note("context keys and values", draft._context.keys_values[:rows])
        tape.note("kept rows", kept)
        store(batch, kept)

    def drawing(seed: int, position: int, purpose: Purpose, index: int = 0) -> int:
        tape.note("random number: seed, position, purpose", [seed, position, int(purpose), index])
        return bits(seed, position, purpose, index)

    with monkeypatch.context() as patch:
        patch.setattr(llm, "step", stepping)
        patch.setattr(draft, "draft", proposing)
        patch.setattr(draft, "store_context", storing)
        patch.setattr("engine.run.random_bits", drawing)
        llm.observer = tape
        try:
            yield tape
        finally:
            llm.observer = None


def assert_same_tape(one: Tape, other: Tape) -> int:
    """Every entry, bit for bit and in the same order; the first that differs is named. Returns how many there are."""
    for index, ((what, left), (other_what, right)) in enumerate(zip(one.entries, other.entries, strict=False)):
        assert what == other_what, f"entry {index}: one records {what!r} where the other records {other_what!r}"
        assert_bits_equal(left, right, f"entry {index}, {what}")
    assert len(one.entries) == len(other.entries), f"{len(one.entries)} entries against {len(other.entries)}"
    return len(one.entries)
