"""Penalties, bias, allowed and banned ids, min-p and log probabilities against their oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.ops import sampling as ops
from engine.request import SamplingParams
from engine.sampling.processors import RowHistory, logprobs, min_p_inplace, process_inplace
from engine.sampling.rules import LogitsRules
from engine.state.blocks import BlockPool
from engine.state.sequence import SequenceState
from engine.steps.laws import history_of, verification_of
from engine.steps.records import Committed, Verification
from engine.steps.report import reports_of
from suites.oracles import sampling as cut_oracle
from suites.oracles import sampling_rules as oracle
from suites.oracles.arrays import F64
from suites.oracles.judge import assert_bits_equal
from suites.sampling import rows
from suites.sampling.cutting import on_device
from suites.targets import Target, array

pytestmark = pytest.mark.group("rules")

# A rule is at most three fp32 operations, each half an ulp of a value below 128 + MAX_BIAS.
ROUNDING = 3 * 2.0**-25 * 256

RULES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition": 1.3},
    "repetition below 1": {"repetition": 0.8},
    "frequency": {"frequency": 0.7},
    "presence": {"presence": 1.1},
    "negative penalties": {"frequency": -0.5, "presence": -1.0},
    "bias": {"bias": {3: 5.0, 7: -100.0}},
    "allowed": {"allowed": frozenset({1, 3, 8})},
    "banned": {"banned": frozenset({0, 5})},
    "all at once": {
        "repetition": 1.2,
        "frequency": 0.3,
        "presence": 0.4,
        "bias": {2: 1.5, 5: 2.0},
        "allowed": frozenset(range(1, 30)),
        "banned": frozenset({5}),
    },
}
NAMES = {
    "repetition": "repetition_penalty",
    "frequency": "frequency_penalty",
    "presence": "presence_penalty",
    "bias": "logit_bias",
    "allowed": "allowed_ids",
    "banned": "banned_ids",
}
HISTORIES = (RowHistory(), RowHistory((3, 4, 4), ()), RowHistory((3,), (4, 7, 7, 7)), RowHistory((), (0, 5, 2, 5)))


@pytest.mark.parametrize("name", RULES)
def test_rules_against_the_oracle(targets: tuple[Target, ...], name: str) -> None:
    asked = RULES[name]
    logits = rows.logits("ordinary", len(HISTORIES), 40)
    logits[1, 4], logits[2, 7] = 0.0, -np.inf
    rules = LogitsRules(**{NAMES[key]: value for key, value in asked.items()})
    for target in targets:
        on = on_device(target, logits)
        process_inplace(on, [rules] * len(HISTORIES), HISTORIES)
        for index, history in enumerate(HISTORIES):
            expected = oracle.ruled(logits[index], prompt=history.prompt, output=history.output, **asked)
            for token, (seen, wanted) in enumerate(zip(on[index].tolist(), expected, strict=True)):
                where = f"{target.name} {name}: row {index}, token {token}: {seen}, expected {wanted}"
                assert seen == wanted or abs(seen - wanted) <= ROUNDING, where


def test_rows_without_rules_keep_every_bit(targets: tuple[Target, ...]) -> None:
    logits = rows.logits("half", 3, 100)
    for target in targets:
        on = on_device(target, logits)
        process_inplace(on, [None, LogitsRules(), LogitsRules(banned_ids=frozenset({1}))], [HISTORIES[3]] * 3)
        assert_bits_equal(array(on)[:2], logits[:2], f"{target.name}: rows that ask nothing")
        assert np.isneginf(array(on)[2, 1])


def test_drafted_prefix_is_part_of_the_history(targets: tuple[Target, ...]) -> None:
    """Row j of a verification has seen j drafted tokens: its penalties say so, each row its own."""
    logits = np.zeros((3, 6), dtype=np.float32)
    rules = LogitsRules(frequency_penalty=1.0)
    drafted = (2, 2, 4)
    for target in targets:
        on = on_device(target, logits)
        process_inplace(on, [rules] * 3, [RowHistory((0,), (1, *drafted[:row])) for row in range(3)])
        assert on.tolist() == [[0, -1, 0, 0, 0, 0], [0, -1, -1, 0, 0, 0], [0, -1, -2, 0, 0, 0]]


@pytest.mark.parametrize("min_p", [0.0, 1e-6, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_min_p(targets: tuple[Target, ...], min_p: float, temperature: float) -> None:
    logits = np.concatenate([rows.logits(kind, 1, 3000) for kind in ("ordinary", "half", "equal", "masked")])
    for target in targets:
        on = on_device(target, logits)
        min_p_inplace(on, [min_p] * 4, [temperature] * 4)
        if min_p == 0 or temperature == 0:
            assert_bits_equal(array(on), logits, f"{target.name}: min-p off")
            continue
        for index in range(4):
            keeps = oracle.min_p_keeps(logits[index], min_p, temperature)
            assert frozenset(np.flatnonzero(np.isfinite(array(on)[index])).tolist()) == keeps
            assert_bits_equal(
                array(on)[index][sorted(keeps)], logits[index][sorted(keeps)], f"{target.name}: kept logits"
            )


def test_min_p_then_top_p(targets: tuple[Target, ...]) -> None:
    """top-p is normalised over what min-p left: shares .5 .3 .2 without the tail, so .75 keeps two."""
    logits = np.log(np.array([[0.4, 0.24, 0.16, 0.05, 0.05, 0.05, 0.05]])).astype(np.float32)
    for target in targets:
        on = on_device(target, logits)
        top_p = target.put(np.array([0.75]), torch.float32)
        before = ops.sampling_masses(on, ops.sampling_plan(on, None, top_p))
        assert int((before > 0).sum()) == 3
        min_p_inplace(on, [0.3], [1.0])
        after = ops.sampling_masses(on, ops.sampling_plan(on, None, top_p))
        assert int((after > 0).sum()) == 2


SLIGHT = {"repetition": 1.05, "frequency": 0.06, "presence": 0.05}
MIN_P = 0.5
# The quotient by temperature carries the rules' rounding; a share moves by twice that. Weights are integers of 40 bits.
SHARES = 2 * ROUNDING


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_the_law_of_each_row_of_a_verification(targets: tuple[Target, ...], temperature: float) -> None:
    """What the engine makes of a request: rules by the row's own history, temperature, min-p, top-k and top-p, in turn.

    The rows are equal, so they differ by the drafts in front of them alone. The best token is banned, so that min-p
    asked before the rules, at another temperature or of another maximum keeps other tokens.
    """
    row = np.random.default_rng(1).permutation(np.linspace(1.5, -1.5, 40)).astype(np.float32)
    best = np.argsort(-row, kind="stable").tolist()
    prompt, emitted, drafts = (best[1], best[5], best[5]), (best[2], best[3]), (best[4], best[4], best[2])
    asked: dict[str, Any] = {**SLIGHT, "bias": {best[6]: 0.1}, "banned": frozenset({best[0]})}
    rules = LogitsRules(**{NAMES[key]: value for key, value in asked.items()}, min_p=MIN_P)
    params = SamplingParams(temperature=temperature, top_k=12, top_p=0.9, seed=1, logprobs=2, rules=rules)
    sequence = SequenceState(prompt, BlockPool(8, 4))
    sequence.reserve(3)
    sequence.commit(3, emitted[:1])
    sequence.reserve(1)
    sequence.commit(1, emitted[1:])
    logits = np.tile(row, (len(drafts) + 1, 1))
    laws = [
        _expected(row, temperature, prompt=prompt, output=(*emitted, *drafts[:before]), **asked)
        for before in range(len(drafts) + 1)
    ]
    assert len({tuple(law) for law in laws}) == len(laws), "a draft changes no law: the case has no power"
    for target in targets:
        verification = verification_of(5, on_device(target, logits), params, history_of(sequence, params), drafts)
        assert isinstance(verification, Verification)
        for index, (law, expected) in enumerate(zip(verification.target_laws, laws, strict=True)):
            seen = np.array([law.probability(token) for token in range(len(row))])
            assert np.flatnonzero(seen).tolist() == np.flatnonzero(expected).tolist(), f"{target.name}: row {index}"
            assert np.abs(seen / np.where(expected > 0, expected, 1) - (expected > 0)).max() <= SHARES / temperature
        _assert_reports_of_the_heads_logits(target, verification, params, row, drafts)


def _expected(row: oracle.F32, temperature: float, **asked: Any) -> F64:
    ruled = np.array(oracle.ruled(row, **asked))
    keeps = oracle.min_p_keeps(ruled.astype(np.float32), MIN_P, temperature)
    left = np.array([value if token in keeps else -np.inf for token, value in enumerate(ruled)])
    ranking = cut_oracle.rank(cut_oracle.after_temperature(left.astype(np.float32), temperature), 12)
    return ranking.probabilities(float(np.float32(0.9)), len(row))


def _assert_reports_of_the_heads_logits(
    target: Target, verification: Verification, params: SamplingParams, row: oracle.F32, drafts: tuple[int, ...]
) -> None:
    """Log probabilities are those of the head, before any rule, one a token and in the order of the tokens."""
    assert verification.head_logits is not None
    assert_bits_equal(array(verification.head_logits), np.tile(row, (len(drafts) + 1, 1)), f"{target.name}: the head")
    verification.head_logits[1] = verification.head_logits[1].flip(0)  # each row says which one it is
    reports = reports_of(verification, Committed(drafts[:2], None), params)
    for report, logits, token in zip(reports, (row, row[::-1]), drafts, strict=False):
        expected = oracle.log_softmax(logits)
        assert report.chosen.token_id == token
        assert abs(report.chosen.logprob - expected[token]) < 1e-12
        assert [one.token_id for one in report.top] == np.argsort(-logits, kind="stable")[:2].tolist()
    assert len(reports) == 2


def test_logprobs(targets: tuple[Target, ...]) -> None:
    """fp64 log softmax: 1e-12 is a thousand times its rounding over 500 entries."""
    logits = rows.logits("half", 1, 500)[0]
    logits[11] = -np.inf
    expected = oracle.log_softmax(logits)
    order = sorted(range(500), key=lambda token: (-expected[token], token))
    for target in targets:
        on = on_device(target, logits[None])[0]
        for token in (order[0], order[7], 11, 499):
            chosen, top = logprobs(on, token, 12)
            assert [one.token_id for one in top] == order[:12]
            for one in (chosen, *top):
                assert one.logprob == expected[one.token_id] or abs(one.logprob - expected[one.token_id]) < 1e-12
                assert one.place == sum(value > expected[one.token_id] for value in expected)
        assert logprobs(on, 11)[0].logprob == -math.inf
