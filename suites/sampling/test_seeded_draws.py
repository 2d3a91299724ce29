"""What the seeded generator draws: the exact distribution, independent streams, the same tokens everywhere.

Statistical cases use fixed seeds, so they pass or fail once and for all. Each false-alarm rate below is what it would
be over the choice of the seed: ALPHA for a case, shared equally by its parts.
"""

from __future__ import annotations

import hashlib
import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from engine.ops import sampling as ops
from engine.sampling import random
from engine.sampling.cutoffs import RowSettings
from engine.sampling.distributions import TokenWeight, target_probs, token_weights
from engine.sampling.random import Purpose
from engine.sampling.sampler import greedy, sample
from suites.oracles import sampling as oracle
from suites.recording import Record
from suites.sampling import rows
from suites.sampling.cutting import Settings, on_device
from suites.targets import CPU, Target, array

pytestmark = pytest.mark.group("seeded draws")

ALPHA = 1e-6
DRAWS = 100_000
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def _draw_many(logits: npt.NDArray[np.float32], settings: Settings, purpose: Purpose, target: Target) -> I64:
    """Tokens of one row at positions 0 .. DRAWS - 1, through the ops, all in one batch that shares the row's memory."""
    k, p, t = (column.expand(DRAWS).contiguous() for column in settings.put(target))
    on = on_device(target, logits).expand(DRAWS, -1)
    plan = ops.sampling_plan(on[:1], k[:1], p[:1], t[:1]).expand(DRAWS, -1).contiguous()
    bits = random.random_bits_at(20260904, torch.arange(DRAWS), purpose).to(target.name)
    out: I64 = array(ops.sampling_draw(on, plan, bits, t))
    return out


def _chi_square(counts: I64, probabilities: F64, alpha: float, what: str) -> float:
    """Pearson's statistic against its 1 - alpha quantile, bins that expect fewer than 10 joined; gives the p-value."""
    expected = probabilities * counts.sum()
    assert counts[probabilities == 0].sum() == 0, f"{what}: a token of probability 0 was drawn"
    order = np.argsort(expected)
    counts, expected = counts[order][expected[order] > 0], expected[order][expected[order] > 0]
    small = int((expected < 10).sum())
    if small:
        counts = np.concatenate([[counts[:small].sum()], counts[small:]])
        expected = np.concatenate([[expected[:small].sum()], expected[small:]])
    if len(expected) == 1:
        return 1.0
    statistic = float(((counts - expected) ** 2 / expected).sum())
    limit = float(stats.chi2.isf(alpha, len(expected) - 1))
    assert statistic <= limit, (
        f"{what}: chi-square {statistic:.1f} over {len(expected) - 1} degrees, allowed {limit:.1f}"
    )
    return float(stats.chi2.sf(statistic, len(expected) - 1))


CASES = {
    "plain": (0, 1.0, 1.0),
    "hot": (0, 1.0, 2.0),
    "cold": (0, 1.0, 0.5),
    "top-k": (5, 1.0, 1.0),
    "top-p": (0, 0.8, 1.0),
    "both, tied": (7, 0.8, 0.7),
}


@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_the_distribution(targets: tuple[Target, ...], record: Record, name: str) -> None:
    """100,000 positions of one request against the oracle's exact probabilities: chi-square at ALPHA a target."""
    top_k, top_p, temperature = CASES[name]
    logits = np.array([[2.0, 1.0, 1.0, 0.5, 0.0, 0.0, 0.0, -1.0, -3.0, 1.0, 0.0, -0.0]], dtype=np.float32)
    ranking = oracle.rank(oracle.after_temperature(logits[0], temperature), top_k)
    expected = ranking.probabilities(float(np.float32(top_p)), logits.shape[1])
    for target in targets:
        tokens = _draw_many(logits, Settings.same(1, top_k, top_p, temperature), Purpose.TARGET, target)
        counts = np.bincount(tokens, minlength=logits.shape[1])
        p_value = _chi_square(counts, expected, ALPHA, f"{target.name} {name}")
        if target.name == "cpu":
            record.metric("chi-square p-value", round(p_value, 6), "1")


@pytest.mark.parametrize("name", CASES)
def test_probabilities_are_the_oracles(targets: tuple[Target, ...], record: Record, name: str) -> None:
    """target_probs and token_weights against fp64, within the band of the integer weights."""
    top_k, top_p, temperature = CASES[name]
    logits = rows.logits("half", 3, 2000)
    settings = Settings.same(3, top_k, top_p, temperature)
    worst = 0.0
    for target in targets:
        on = on_device(target, logits)
        k, p, t = settings.put(target)
        plan = ops.sampling_plan(on, k, p, t)
        probs = array(target_probs(on, plan, t))
        for index in range(3):
            ranking = oracle.rank(oracle.after_temperature(logits[index], temperature), top_k)
            expected = ranking.probabilities(float(np.float32(top_p)), 2000)
            distance = oracle.total_variation(probs[index], expected)
            assert distance <= float(oracle.fixed_point_band(len(ranking.ids))), f"{target.name}: TV {distance:.3e}"
            worst = max(worst, distance)
        tokens = target.put(np.array([int(row.argmax()) for row in probs]), torch.int64)
        weights = token_weights(on, plan, tokens, t)
        assert [weight.probability for weight in weights] == [float(row.max()) for row in probs]
    record.metric("largest TV", worst, "1", better="lower", exact=False)


def test_streams_are_uniform_and_independent(record: Record) -> None:
    """The six pairs of purposes over 250,000 positions: no correlation beyond z at ALPHA / 10; each stream uniform in
    256 bins, chi-square at ALPHA / 10."""
    count = 250_000
    positions = torch.arange(count)
    uniform = {}
    for purpose in Purpose:
        bits = array(random.random_bits_at(7, positions, purpose)).view(np.uint64)
        _chi_square(np.bincount(bits >> np.uint64(56), minlength=256), np.full(256, 1 / 256), ALPHA / 10, purpose.name)
        uniform[purpose] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
    limit = float(stats.norm.isf(ALPHA / 20)) / math.sqrt(count)
    worst = 0.0
    for one, other in combinations(Purpose, 2):
        correlation = float((uniform[one] * uniform[other]).mean() * 12)
        assert abs(correlation) <= limit, (
            f"{one.name} and {other.name}: correlation {correlation:.2e}, allowed {limit:.2e}"
        )
        worst = max(worst, abs(correlation))
    record.metric("largest correlation", round(worst, 8), "1", better="lower")


def test_speculative_round_keeps_the_law(record: Record) -> None:
    """Draft, accept, recover over 250,000 rounds: the emitted token has the target's law. Noise that draft and recovery
    share would move a share by 0.03, thirty standard errors; the residual has two tokens, so that this can be seen."""
    count = 250_000
    target_law, draft_law = np.array([0.1, 0.45, 0.25, 0.2]), np.array([0.55, 0.05, 0.2, 0.2])
    residual = np.maximum(target_law - draft_law, 0)
    positions = torch.arange(count)

    def drawn(law: F64, purpose: Purpose) -> I64:
        with np.errstate(divide="ignore"):
            logits = torch.from_numpy(np.log(law).astype(np.float32)).expand(count, -1)
        plan = ops.sampling_plan(logits[:1]).expand(count, -1).contiguous()
        out: I64 = array(ops.sampling_draw(logits, plan, random.random_bits_at(11, positions, purpose)))
        return out

    drafted = drawn(draft_law, Purpose.DRAFT)
    bits = array(random.random_bits_at(11, positions, Purpose.ACCEPT)).view(np.uint64)
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    accepted = uniform < (target_law / draft_law)[drafted]
    emitted = np.where(accepted, drafted, drawn(residual, Purpose.RECOVER))
    counts = np.bincount(emitted, minlength=4)
    p_value = _chi_square(counts, target_law, ALPHA, "emitted tokens")
    record.metric("chi-square p-value", round(p_value, 6), "1")


def test_acceptance_is_decided_in_integers() -> None:
    """`accepts` is `uniform < weight / total` for the generator's uniform, at the ends and at the nearest numbers."""
    for weight, total in [(0, 7), (7, 7), (3, 7), (1, 2**58), (2**57, 2**58)]:
        one = TokenWeight(weight, total)
        for top in [0, 1, 2**51, 2**52 - 1, weight * 2**52 // total, max(weight * 2**52 // total - 1, 0)]:
            if top >= 2**52:
                continue
            assert one.accepts(top << 12) == ((2 * top + 1) * total < weight * 2**53)
    assert not TokenWeight(0, 7).accepts(0)
    assert not TokenWeight(1, 2**53).accepts(0)  # the uniform number is the probability itself: not below it
    assert TokenWeight(7, 7).accepts(2**64 - 1)


def test_a_request_draws_the_same_alone_and_in_any_batch(targets: tuple[Target, ...]) -> None:
    """Seed and position name the number; slot, neighbours and history do not."""
    logits, settings = rows.logits("ordinary", 9, 4099), rows.mixed_settings(9, 4099, seed=3)
    seeds, positions = [5, 5, 6, 7, 8, 9, 5, 5, 1], [0, 1, 0, 2, 3, 4, 5, 6, 7]
    for target in targets:
        on = on_device(target, logits)
        k, p, t = settings.put(target)
        together = sample(on, RowSettings(t, k, p), seeds, positions)
        for index in range(9):
            one = slice(index, index + 1)
            alone = sample(on[one], RowSettings(t[one], k[one], p[one]), seeds[one], positions[one])
            assert alone.token_ids[0] == together.token_ids[index]
            assert alone.faults[0] is None


def test_faults_have_reasons_and_no_token(targets: tuple[Target, ...]) -> None:
    logits = np.array([[1, 2], [np.nan, 2], [np.inf, 0], [-np.inf, -np.inf]], dtype=np.float32)
    for target in targets:
        sampled = sample(on_device(target, logits), RowSettings(), [1] * 4, [0] * 4)
        assert sampled.token_ids[0] >= 0
        assert sampled.token_ids[1:] == (-1, -1, -1)
        assert sampled.faults[0] is None
        assert [str(fault) for fault in sampled.faults[1:]] == [
            "the logits contain NaN",
            "the logits contain +inf",
            "every logit is -inf: no token is allowed",
        ]
        assert greedy(on_device(target, logits)).tolist() == [1, -1, -1, -1]


def test_tokens_are_the_same_on_every_machine(record: Record) -> None:
    """2,000 draws from logits that are exact in fp32, hashed: the number is committed in the baseline."""
    index = np.arange(4096, dtype=np.int64)
    logits = (((index * 7919) % 4096) / 256).astype(np.float32)[None].repeat(2000, axis=0)
    settings = RowSettings.from_lists([0.75] * 2000, [50] * 2000, [0.9] * 2000)
    tokens = sample(on_device(CPU, logits), settings, [12345] * 2000, list(range(2000))).token_ids
    digest = hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).hexdigest()
    record.metric("tokens sha256, first 48 bits", int(digest[:12], 16), "1")
    assert len(set(tokens)) > 20
