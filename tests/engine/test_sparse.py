from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.request import SamplingParams
from engine.run import SeedNoise
from engine.sampling.rules import LogitsRules
from engine.steps.laws import LogitsLaw, verification_of
from engine.steps.records import DraftLaw, Fault, PointLaw, Proposal, TargetLaw, TokenLaw, Verification
from engine.steps.reject import reject
from engine.steps.sparse import LIMIT, SparseLaw, compact_rows, sparse_refusal

VOCAB, DRAFTS = 300, 5


def both(logits: torch.Tensor, params: SamplingParams) -> tuple[Verification, Verification]:
    forms = verification_of(7, logits.clone(), params), verification_of(7, logits.clone(), params, form="sparse")
    dense, sparse = forms
    assert isinstance(dense, Verification)
    assert isinstance(sparse, Verification)
    return dense, sparse


def drafted(rng: np.random.Generator, near: np.ndarray) -> Proposal:
    """Tokens with laws over some of ``near`` and some others; every third is a point mass."""
    tokens: list[int] = []
    laws: list[DraftLaw] = []
    for step in range(DRAFTS):
        ids = np.unique(np.concatenate([rng.choice(near, 6), rng.integers(0, VOCAB, 4)]))
        probs = rng.dirichlet(np.ones(len(ids)))
        token = int(rng.choice(ids))
        tokens.append(token)
        laws.append(PointLaw(token) if step % 3 == 2 else TokenLaw(ids, probs))
    return Proposal(tuple(tokens), tuple(laws))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=20, top_p=0.95),
        SamplingParams(temperature=0.6, top_k=5),
        SamplingParams(temperature=2.5, top_k=50, top_p=0.5),
        SamplingParams(temperature=1.0, top_k=1),
    ],
)
@pytest.mark.parametrize("grid", [0.0, 0.25])
def test_both_forms_decide_alike(params: SamplingParams, grid: float) -> None:
    """``grid`` rounds the logits, so that ties cross every cutoff."""
    rng = np.random.default_rng(3)
    sparse_rows = 0
    for trial in range(12):
        values = rng.normal(scale=2, size=(DRAFTS + 1, VOCAB)).astype(np.float32)
        if grid:
            values = np.round(values / np.float32(grid)) * np.float32(grid)
        logits = torch.from_numpy(values)
        dense, sparse = both(logits, params)
        proposal = drafted(rng, np.argsort(-values[0])[:30])
        noise = SeedNoise(trial)
        assert reject(proposal, dense, noise) == reject(proposal, sparse, noise)
        for left, right in zip(dense.target_laws, sparse.target_laws, strict=True):
            sparse_rows += isinstance(right, SparseLaw)
            assert_alike(left, right, proposal)
    # Rounded logits tie so often that a wide top-k leaves few rows sparse; elsewhere most of them must be.
    assert sparse_rows > (0 if grid else 20), "hardly any row was sparse: the test has no power"


def assert_alike(dense: TargetLaw, sparse: TargetLaw, proposal: Proposal) -> None:
    for token in (*proposal.token_ids, 0, VOCAB - 1):
        assert dense.probability(token) == sparse.probability(token)
    for law in proposal.draft_laws:
        for bits in (1, 2**64 - 1):
            assert dense.residual(law).draw(bits) == sparse.residual(law).draw(bits)


def test_a_row_with_more_ties_than_it_may_hold_is_dense() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, 4:20] = 3
    params = SamplingParams(temperature=1.0, top_k=10)
    assert [row is None for row in compact_rows(logits, params)] == [True, False]
    _, sparse = both(logits, params)
    assert [type(law) for law in sparse.target_laws] == [LogitsLaw, SparseLaw]
    assert sparse.target_laws[1].probability(19) == 1 / 16
    assert sparse.target_laws[1].probability(20) == 0


def test_ties_that_the_temperature_makes_are_kept() -> None:
    """Two neighbours of fp32 whose quotients by 3 are the same number: threshold top-1 keeps both."""
    high = next(
        value
        for value in np.arange(1, 2, 1e-4, dtype=np.float32)
        if value / np.float32(3) == np.nextafter(value, np.float32(0)) / np.float32(3)
    )
    logits = torch.full((1, VOCAB), -50.0)
    logits[0, 8], logits[0, 2] = float(high), float(np.nextafter(high, np.float32(0)))
    dense, sparse = both(logits, SamplingParams(temperature=3.0, top_k=1))
    assert dense.target_laws[0].probability(2) == sparse.target_laws[0].probability(2) == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_at_fault_is_named_in_both_forms(bad: float) -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, 5] = bad
    params = SamplingParams(temperature=1.0, top_k=10)
    faults = verification_of(7, logits, params), verification_of(7, logits, params, form="sparse")
    assert isinstance(faults[0], Fault)
    assert faults[0] == faults[1]
    assert faults[0].reason.startswith("position 8: ")


def test_a_vocabulary_below_the_limit_is_whole() -> None:
    logits = torch.randn(1, 30)
    dense, sparse = both(logits, SamplingParams(temperature=1.0, top_k=40))
    assert isinstance(sparse.target_laws[0], SparseLaw)
    assert all(dense.target_laws[0].probability(i) == sparse.target_laws[0].probability(i) for i in range(30))


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (SamplingParams(temperature=1.0, top_k=20), None),
        (SamplingParams(), "temperature 0"),
        (SamplingParams(temperature=1.0), "top-k is 0; allowed: 1 to 64"),
        (SamplingParams(temperature=1.0, top_k=LIMIT + 1), "top-k is 65; allowed: 1 to 64"),
        (SamplingParams(temperature=1.0, top_k=9, rules=LogitsRules(min_p=0.1)), "bias, bans, penalties or min-p"),
        (SamplingParams(temperature=1.0, top_k=9, logprobs=0), "log probabilities are asked for"),
    ],
)
def test_what_the_sparse_form_refuses(params: SamplingParams, reason: str | None) -> None:
    refusal = sparse_refusal(params)
    assert (refusal is None) == (reason is None)
    assert refusal is None or reason is None or refusal.startswith(reason)


def test_a_refused_request_has_dense_laws() -> None:
    logits = torch.randn(2, VOCAB)
    params = SamplingParams(
        temperature=1.0, top_k=9, rules=LogitsRules(banned_ids=frozenset({int(logits[0].argmax())}))
    )
    verification = verification_of(7, logits, params, form="sparse")
    assert isinstance(verification, Verification)
    assert {type(law) for law in verification.target_laws} == {LogitsLaw}
    assert verification.target_laws[0].probability(min(params.rules.banned_ids)) == 0
