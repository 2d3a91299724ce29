"""What is read ahead of reject is what reject would have been told: every law, token and probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.request import SamplingParams
from engine.run import SeedNoise
from engine.sampling.random import Purpose
from engine.steps.laws import verification_of
from engine.steps.read_ahead import Asked, ReadAhead, ReadLaw
from engine.steps.records import Fault, PointLaw, Proposal, TokenLaw, Verification
from engine.steps.reject import reject
from suites.targets import Target

pytestmark = pytest.mark.group("read ahead")

VOCAB = 50
SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.4),
    SamplingParams(temperature=2.0, top_k=1),
)


def _logits(target: Target, rows: int, seed: int) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=(rows, VOCAB)) * 3
    return target.put(values, torch.float32)


def _both(asked: Sequence[Asked], logits: torch.Tensor) -> list[tuple[Verification | Fault, Verification | Fault]]:
    """Of each request: the laws read ahead, and those that look at the logits when they are asked."""
    ahead = ReadAhead(asked, logits.device).read(logits)
    pairs, end = [], 0
    for one, law in zip(asked, ahead, strict=True):
        start, end = end, end + len(one.tokens)
        pairs.append((law, verification_of(one.first_position, logits[start:end], one.params)))
    return pairs


@pytest.mark.parametrize("seed", range(40))
def test_reject_decides_alike(seed: int, targets: tuple[Target, ...]) -> None:
    """Requests of all kinds in one round, with drafts that are likely enough to be accepted now and then."""
    for target in targets:
        _decide_alike(seed, _logits(target, 5 * 4, seed))


def _decide_alike(seed: int, logits: torch.Tensor) -> None:
    likely = logits.argmax(dim=1).tolist()
    asked = []
    for number, params in enumerate(SETTINGS):
        drafts = tuple(likely[4 * number + row] if (seed + row) % 3 else (seed + row) % VOCAB for row in range(3))
        asked.append(Asked(10 * number, params, drafts, SeedNoise(seed + number)))
    for one, (ahead, plain) in zip(asked, _both(asked, logits), strict=True):
        assert isinstance(ahead, Verification)
        assert isinstance(plain, Verification)
        proposal = Proposal(one.drafts, tuple(PointLaw(token) for token in one.drafts))
        decided = reject(proposal, plain, one.noise)
        assert reject(proposal, ahead, one.noise) == decided
        # And of such drafts nothing is asked of the device any more: every answer had been read.
        read = tuple(replace(law, row=_Silent()) if isinstance(law, ReadLaw) else law for law in ahead.target_laws)  # type: ignore[arg-type]
        assert reject(proposal, replace(ahead, target_laws=read), one.noise) == decided


class _Silent:
    """A row that may be told what to leave out and must not be asked."""

    def without(self, token_id: int) -> _Silent:
        return self

    def draw(self, random_bits: int) -> int:
        raise AssertionError(f"the row was asked for a token by the number {random_bits:#x}")

    def probability(self, token_id: int) -> float:
        raise AssertionError(f"the row was asked for the probability of {token_id}")


def test_other_questions_are_asked_of_the_row(targets: tuple[Target, ...]) -> None:
    """Another token, another random number, a draft with a law of its own."""
    for target in targets:
        _asked_of_the_row(_logits(target, 2, 1))


def _asked_of_the_row(logits: torch.Tensor) -> None:
    noise, params = SeedNoise(3), SamplingParams(temperature=1.0)
    asked = [Asked(7, params, (4,), noise)]
    ((ahead, plain),) = _both(asked, logits)
    assert isinstance(ahead, Verification)
    assert isinstance(plain, Verification)
    draft = TokenLaw(np.array([4, 9]), np.array([0.25, 0.75]))
    for mine, theirs in zip(ahead.target_laws, plain.target_laws, strict=True):
        for token in range(VOCAB):
            assert mine.probability(token) == theirs.probability(token)
        for bits in (0, 2**63, 2**64 - 1, noise.bits(8, Purpose.TARGET)):
            assert mine.draw(bits) == theirs.draw(bits)
            assert mine.residual(PointLaw(4)).draw(bits) == theirs.residual(PointLaw(4)).draw(bits)
            assert mine.residual(draft).draw(bits) == theirs.residual(draft).draw(bits)


def test_a_row_at_fault_is_its_requests_alone(targets: tuple[Target, ...]) -> None:
    for target in targets:
        logits = _logits(target, 4, 2)
        logits[1, 3] = float("nan")
        asked = [Asked(5, params, (1,), SeedNoise(0)) for params in SETTINGS[:2]]
        first, second = ReadAhead(asked, logits.device).read(logits)
        assert first == Fault("position 6: the logits contain NaN")
        assert isinstance(second, Verification)


def test_nothing_but_the_draft_leaves_the_draft(targets: tuple[Target, ...]) -> None:
    """All mass on the draft: what would replace it is the draft itself."""
    for target in targets:
        values = np.full((2, VOCAB), -np.inf)
        values[:, 8] = 1.0
        asked = [Asked(0, SamplingParams(temperature=1.0), (8,), SeedNoise(1))]
        ((ahead, _),) = _both(asked, target.put(values, torch.float32))
        assert isinstance(ahead, Verification)
        assert ahead.target_laws[0].residual(PointLaw(8)).draw(SeedNoise(1).bits(0, Purpose.RECOVER)) == 8
