"""Small worlds for exact enumeration: what the target and the drafter think after every beginning, all in fp64."""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from engine.request import SamplingParams
from engine.sampling.random import Purpose
from engine.steps.draft import LookupSettings, find_match
from engine.steps.fusion import FusionSettings, fuse
from engine.steps.laws import verification_of
from engine.steps.records import DraftLaw, Fault, PointLaw, Proposal, TokenLaw, Verification
from engine.steps.reject import reject
from suites.oracles.arrays import F64
from suites.spec_decode.branches import Branch

Prefix = tuple[int, ...]
START = 40  # position of the first token that is emitted


class Form(StrEnum):
    """How laws are handed to the engine."""

    DENSE = "dense"  # every token of the vocabulary, most with no mass
    SPARSE = "sparse"  # the tokens that have mass, no others
    LOGITS = "logits"  # the target as a row of logits with its plan, never written out


@dataclass(frozen=True, slots=True)
class World:
    """Laws of the next token as functions of what was emitted so far; ``vocab`` tokens."""

    name: str
    vocab: int
    target: Callable[[Prefix], F64]
    drafter: Callable[[Prefix], F64]

    def joint(self, prefix: Prefix) -> float:
        """The target's probability of beginning with ``prefix``."""
        return math.prod(float(self.target(prefix[:index])[token]) for index, token in enumerate(prefix))


def constant(name: str, target: Sequence[float], drafter: Sequence[float]) -> World:
    """A world without memory."""
    one, other = np.array(target), np.array(drafter)
    return World(name, len(target), lambda prefix: one, lambda prefix: other)


def remembering(seed: int, vocab: int, zeros: float) -> World:
    """A world of random laws, new ones after every beginning; a share ``zeros`` of the tokens has no mass."""

    def law(who: str, prefix: Prefix) -> F64:
        rng = np.random.default_rng([seed, vocab, zlib.crc32(f"{who}{prefix}".encode())])
        weights = rng.integers(1, 10, vocab) * (rng.random(vocab) >= zeros)
        if not weights.any():
            weights[rng.integers(vocab)] = 1
        out: F64 = weights / weights.sum()
        return out

    return World(
        f"random-{vocab}-{seed}", vocab, lambda prefix: law("target", prefix), lambda prefix: law("drafter", prefix)
    )


@dataclass(frozen=True, slots=True)
class Lookup:
    """A history that the lookup can find something in, and the rules by which it joins the drafted block."""

    history: Prefix
    settings: LookupSettings
    fusion: FusionSettings
    width: int  # verify slots; beyond the drafted block lies the tail


class Told:
    """A world as the engine is told of it: records in one form, each made once, with the edges that they cut at."""

    def __init__(self, world: World, form: Form) -> None:
        self.world = world
        self._form = form
        self.drafter_law = functools.cache(self._drafter_law)
        self.verification = functools.cache(self._verification)
        self.sums = functools.cache(self._sums)
        self.accept_and_recover = functools.cache(self._accept_and_recover)

    def _written(self, probs: F64) -> TokenLaw:
        kept = np.arange(len(probs)) if self._form is Form.DENSE else np.flatnonzero(probs)
        return TokenLaw(kept, probs[kept])

    def _drafter_law(self, prefix: Prefix) -> TokenLaw:
        return self._written(self.world.drafter(prefix))

    def _verification(self, first_position: int, prefixes: tuple[Prefix, ...]) -> Verification:
        """The target's rows after each of ``prefixes``."""
        targets = [self.world.target(prefix) for prefix in prefixes]
        if self._form is not Form.LOGITS:
            return Verification(first_position, tuple(map(self._written, targets)))
        with np.errstate(divide="ignore"):
            logits = torch.from_numpy(np.log(np.stack(targets)).astype(np.float32))
        verification = verification_of(first_position, logits, SamplingParams(temperature=1.0))
        assert not isinstance(verification, Fault)
        return verification

    def _sums(self, whose: str, prefix: Prefix) -> tuple[float, ...]:
        law = self.world.target(prefix) if whose == "target" else self.world.drafter(prefix)
        return tuple(np.cumsum(law)[:-1])

    def _accept_and_recover(
        self, prefix: Prefix, token: int, is_point: bool
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        target = self.world.target(prefix)
        drafter = np.eye(self.world.vocab)[token] if is_point else self.world.drafter(prefix)
        rest = np.maximum(target - drafter, 0)
        return (float(target[token] / drafter[token]),), tuple(np.cumsum(rest / (rest.sum() or 1))[:-1])


def emit(
    world: World, count: int, *, drafts: int, form: Form = Form.DENSE, lookup: Lookup | None = None
) -> Callable[[Branch], Prefix]:
    """The process that runs rounds until ``count`` tokens are there, and gives the first ``count``."""
    told = Told(world, form)

    def process(noise: Branch) -> Prefix:
        emitted: Prefix = ()
        while len(emitted) < count:
            proposal = _propose(told, drafts, lookup, emitted, noise)
            tokens, first = proposal.token_ids, START + len(emitted)
            prefixes = tuple((*emitted, *tokens[:step]) for step in range(len(tokens) + 1))
            for step, law in enumerate(proposal.draft_laws):
                accept, recover = told.accept_and_recover(prefixes[step], tokens[step], isinstance(law, PointLaw))
                noise.expect(first + step, Purpose.ACCEPT, accept)
                noise.expect(first + step, Purpose.RECOVER, recover)
            noise.expect(first + len(tokens), Purpose.TARGET, told.sums("target", prefixes[-1]))
            emitted = (*emitted, *reject(proposal, told.verification(first, prefixes), noise).emitted)
            noise.note(emitted)
        return emitted[:count]

    return process


def _propose(told: Told, drafts: int, lookup: Lookup | None, prefix: Prefix, noise: Branch) -> Proposal:
    """Draw a block after ``prefix`` and join it with what the lookup finds."""
    tokens: Prefix = ()
    laws: list[DraftLaw] = []
    for step in range(drafts):
        behind, position = (*prefix, *tokens), START + len(prefix) + step
        noise.expect(position, Purpose.DRAFT, told.sums("drafter", behind))
        law = told.drafter_law(behind)
        tokens = (*tokens, law.draw(noise.bits(position, Purpose.DRAFT)))
        laws.append(law)
        noise.note(tokens)
    drafted = Proposal(tokens, tuple(laws))
    if lookup is None:
        return drafted
    match = find_match(array("i", (*lookup.history, *prefix)), lookup.width, lookup.settings)
    return fuse(drafted, match, lookup.fusion)


def declared(world: World, count: int, form: Form) -> dict[Prefix, float]:
    """The law that the target declares for the first ``count`` tokens. Logits declare theirs in integer weights."""
    told = Told(world, form)
    out = {}
    for tokens in itertools.product(range(world.vocab), repeat=count):
        prefixes = tuple(tokens[:step] for step in range(count))
        rows = told.verification(START, prefixes).target_laws
        probability = math.prod(row.probability(token) for row, token in zip(rows, tokens, strict=True))
        if probability > 0:
            out[tokens] = probability
    return out
