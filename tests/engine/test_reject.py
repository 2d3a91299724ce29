"""The law of a round by exact enumeration: every branch that the random numbers can take, weighed in fp64."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.random import Purpose
from engine.steps.draft import Match
from engine.steps.fusion import FusionSettings, fuse
from engine.steps.records import Acceptance, LastToken, PointLaw, Proposal, TokenLaw, Verification, unit_interval
from engine.steps.reject import reject

EXACT = 1e-12  # sums of a few dozen fp64 products of numbers below 1
POSITION = 17


def law(*probs: float, ids: tuple[int, ...] | None = None) -> TokenLaw:
    return TokenLaw(np.array(range(len(probs)) if ids is None else ids), np.array(probs))


@dataclass
class Scripted:
    """Random numbers given in advance, by position and purpose; remembers what was asked for."""

    numbers: dict[tuple[int, Purpose], float]
    asked: list[tuple[int, Purpose]] = field(default_factory=list)

    def uniform(self, position: int, purpose: Purpose) -> float:
        self.asked.append((position, purpose))
        return self.numbers[position, purpose]

    def bits(self, position: int, purpose: Purpose) -> int:
        return min(int(self.uniform(position, purpose) * 2**64), 2**64 - 1)


def branches(probs: np.ndarray) -> Iterator[tuple[float, float]]:
    """A number inside each token's stretch of (0, 1), with the length of the stretch."""
    edges = np.concatenate([[0.0], np.cumsum(probs)])
    for low, high in itertools.pairwise(edges):
        if high > low:
            yield (low + high) / 2, high - low


def round_law(drafts: list[TokenLaw], targets: list[TokenLaw]) -> dict[tuple[int, ...], float]:
    """Probability of each emitted sequence when every draft i is drawn from ``drafts[i]``, whatever came before."""
    out: dict[tuple[int, ...], float] = defaultdict(float)
    for tokens in itertools.product(*(one.token_ids[one.probs > 0].tolist() for one in drafts)):
        proposal = Proposal(tuple(tokens), tuple(drafts))
        drawn = float(np.prod([one.probability(token) for one, token in zip(drafts, tokens, strict=True)]))
        _walk(proposal, Verification(POSITION, tuple(targets)), drawn, out)
    return out


def _walk(proposal: Proposal, verification: Verification, weight: float, out: dict[tuple[int, ...], float]) -> None:
    """Follow reject through each first rejection and through full acceptance, weighing the accept decisions."""
    numbers: dict[tuple[int, Purpose], float] = {}
    for step, token in enumerate(proposal.token_ids):
        target = verification.target_laws[step].probability(token)
        stays = min(1.0, target / proposal.draft_laws[step].probability(token))
        if stays < 1:
            rejecting = {**numbers, (POSITION + step, Purpose.ACCEPT): (1 + stays) / 2}
            rest = verification.target_laws[step].residual(proposal.draft_laws[step])
            assert isinstance(rest, TokenLaw)
            for number, share in branches(rest.probs):
                noise = Scripted({**rejecting, (POSITION + step, Purpose.RECOVER): number})
                out[reject(proposal, verification, noise).emitted] += weight * (1 - stays) * share
        if stays == 0:
            return
        weight *= stays
        numbers[POSITION + step, Purpose.ACCEPT] = stays / 2
    last = verification.target_laws[-1]
    assert isinstance(last, TokenLaw)
    for number, share in branches(last.probs):
        noise = Scripted({**numbers, (POSITION + len(proposal.token_ids), Purpose.TARGET): number})
        out[reject(proposal, verification, noise).emitted] += weight * share


def first_token_law(out: dict[tuple[int, ...], float], vocab: int) -> np.ndarray:
    probs = np.zeros(vocab)
    for tokens, weight in out.items():
        probs[tokens[0]] += weight
    return probs


def laws(vocab: int) -> st.SearchStrategy[TokenLaw]:
    weights = st.lists(st.integers(0, 9), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda numbers: law(*(number / sum(numbers) for number in numbers)))


@given(data=st.data(), vocab=st.integers(2, 6))
def test_the_first_token_follows_the_target(data: st.DataObject, vocab: int) -> None:
    draft_law, target = data.draw(laws(vocab)), data.draw(laws(vocab))
    out = round_law([draft_law], [target, data.draw(laws(vocab))])
    assert np.abs(first_token_law(out, vocab) - target.probs).max() < EXACT
    accepted = sum(weight for tokens, weight in out.items() if len(tokens) == 2)
    # Not exactly: a rejected draft may be followed by nothing, but never by a second token.
    assert abs(accepted - np.minimum(draft_law.probs, target.probs).sum()) < EXACT


@given(data=st.data(), vocab=st.integers(2, 4))
def test_two_drafts_emit_the_joint_law(data: st.DataObject, vocab: int) -> None:
    drafts = [data.draw(laws(vocab)) for _ in range(2)]
    first, second, third = (data.draw(laws(vocab)) for _ in range(3))
    out = round_law(drafts, [first, second, third])
    assert abs(sum(out.values()) - 1) < EXACT
    # The pair (x1, x2): where a round emits one token, the next round's first follows the target by the test above.
    accepted_first = np.minimum(drafts[0].probs, first.probs)
    for one in range(vocab):
        going_on = np.zeros(vocab)
        for tokens, weight in out.items():
            if len(tokens) > 1 and tokens[0] == one:
                going_on[tokens[1]] += weight
        assert np.abs(going_on - accepted_first[one] * second.probs).max() < EXACT


@pytest.mark.parametrize(
    ("draft_probs", "target_probs"),
    [((0.5, 0.5), (0.8, 0.2)), ((0.55, 0.05, 0.2, 0.2), (0.1, 0.45, 0.25, 0.2)), ((0.2, 0.5, 0.3), (0.5, 0.3, 0.2))],
)
def test_the_facts_examples(draft_probs: tuple[float, ...], target_probs: tuple[float, ...]) -> None:
    out = round_law([law(*draft_probs)], [law(*target_probs), law(*target_probs)])
    assert np.abs(first_token_law(out, len(target_probs)) - np.array(target_probs)).max() < EXACT


def test_a_sure_draft_stays_with_the_targets_probability() -> None:
    out = round_law([law(0.0, 1.0)], [law(0.3, 0.6, 0.1), law(1.0)])
    assert out[1, 0] == pytest.approx(0.6, abs=EXACT)
    assert out[0,] == pytest.approx(0.3, abs=EXACT)


def test_greedy_is_the_same_rule_with_all_mass_on_the_best() -> None:
    noise = Scripted(dict.fromkeys(itertools.product(range(20, 24), Purpose), 0.999))
    targets = tuple(PointLaw(token) for token in (4, 7, 9))
    drafts = (PointLaw(4), law(0.9, 0.1, ids=(3, 8)))
    acceptance = reject(Proposal((4, 8), drafts), Verification(20, targets), noise)
    assert acceptance == Acceptance((4,), 7, LastToken.RECOVERED)
    everything = reject(
        Proposal((4, 7), (PointLaw(4), law(0.001, 0.999, ids=(7, 8)))), Verification(20, targets), noise
    )
    assert everything == Acceptance((4, 7), 9, LastToken.BONUS)


def test_an_empty_draft_draws_from_the_target() -> None:
    noise = Scripted({(5, Purpose.TARGET): 0.75})
    acceptance = reject(Proposal(), Verification(5, (law(0.5, 0.5),)), noise)
    assert acceptance == Acceptance((), 1, LastToken.BONUS)
    assert noise.asked == [(5, Purpose.TARGET)]


def test_a_token_without_target_mass_never_stays() -> None:
    smallest = 2.0**-53
    noise = Scripted({(5, Purpose.ACCEPT): smallest, (5, Purpose.RECOVER): 0.5})
    acceptance = reject(Proposal((0,), (law(1.0),)), Verification(5, (law(0.0, 1.0), law(1.0))), noise)
    assert acceptance == Acceptance((), 1, LastToken.RECOVERED)


def test_equal_laws_accept_always() -> None:
    same = law(0.3, 0.7)
    noise = Scripted({(5, Purpose.ACCEPT): 1 - 2.0**-53, (6, Purpose.TARGET): 0.1})
    assert reject(Proposal((0,), (same,)), Verification(5, (same, same)), noise).source is LastToken.BONUS


def test_an_empty_residual_falls_back_to_the_target() -> None:
    # An ulp apart: the target is nowhere above the draft, yet a draft token can be rejected.
    draft_law, target = law(np.nextafter(0.3, 1), 0.7), law(0.3, 0.7)
    rest = target.residual(draft_law)
    assert rest is target
    assert rest.draw(0) == 0


def test_numbers_of_different_purposes_are_never_shared() -> None:
    noise = Scripted({(5, Purpose.ACCEPT): 0.1, (6, Purpose.ACCEPT): 0.9, (6, Purpose.RECOVER): 0.5})
    proposal = Proposal((0, 0), (law(1.0), law(1.0)))
    reject(proposal, Verification(5, (law(0.5, 0.5), law(0.5, 0.5), law(1.0))), noise)
    assert noise.asked == [(5, Purpose.ACCEPT), (6, Purpose.ACCEPT), (6, Purpose.RECOVER)]


def test_rows_must_be_one_more_than_drafts() -> None:
    with pytest.raises(ValueError, match="1 target rows for 1 drafts; allowed: 2"):
        reject(Proposal((0,), (law(1.0),)), Verification(5, (law(1.0),)), Scripted({}))


@given(data=st.data(), vocab=st.integers(1, 6), bits=st.integers(0, 2**64 - 1))
def test_a_draw_always_has_mass(data: st.DataObject, vocab: int, bits: int) -> None:
    one = data.draw(laws(vocab))
    assert one.probability(one.draw(bits)) > 0


def test_the_last_token_with_mass_is_drawn_at_the_very_end() -> None:
    assert law(0.5, 0.5, 0.0).draw(2**64 - 1) == 1
    assert 0 < unit_interval(0) < unit_interval(2**64 - 1) < 1


@pytest.mark.parametrize(
    ("ids", "probs", "message"),
    [
        ((0, 0), (0.5, 0.5), "must ascend"),
        ((1, 0), (0.5, 0.5), "must ascend"),
        ((0,), (0.5,), "sum to 0.5"),
        ((0, 1), (1.5, -0.5), "none below 0"),
        ((0, 1), (float("nan"), 1.0), "sum to nan"),
        ((), (), "n > 0"),
        ((0, 1), (1.0,), "allowed: both"),
    ],
)
def test_what_is_no_law_is_refused(ids: tuple[int, ...], probs: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLaw(np.array(ids, dtype=np.int64), np.array(probs, dtype=np.float64))


def test_a_proposal_owns_the_probability_of_its_tokens() -> None:
    with pytest.raises(ValueError, match="token 3 was drafted but its law gives it no probability"):
        Proposal((3,), (law(0.5, 0.5),))
    with pytest.raises(ValueError, match="2 drafted tokens with 1 laws"):
        Proposal((0, 1), (law(0.5, 0.5),))


@pytest.mark.parametrize("agree", [0, 1, 2])
@pytest.mark.parametrize("length", [4, 6])
def test_lookup_joined_with_a_drafted_block_keeps_the_joint_law(agree: int, length: int) -> None:
    """The published example and one of three tokens: weak and strong matches, a partial one, and a tail."""
    settings = FusionSettings(weak=4, strong=6, agree=agree, tail=4)
    first, second, third = law(0.5, 0.3, 0.2), law(0.1, 0.2, 0.7), law(0.6, 0.2, 0.2)
    drafts = [law(0.2, 0.5, 0.3), law(0.3, 0.3, 0.4)]
    for looked_up in [(0,), (0, 1), (0, 1, 2), (1, 0)]:
        out: dict[tuple[int, ...], float] = defaultdict(float)
        for tokens in itertools.product(range(3), repeat=2):
            drawn = float(np.prod([one.probs[token] for one, token in zip(drafts, tokens, strict=True)]))
            proposal = fuse(Proposal(tokens, tuple(drafts)), Match(length, looked_up), settings)
            targets = (first, second, third, third)[: len(proposal.token_ids) + 1]
            _walk(proposal, Verification(POSITION, targets), drawn, out)
        assert np.abs(first_token_law(out, 3) - first.probs).max() < EXACT
        # What follows a first token that was accepted: the second target's law, whoever proposed it.
        for one in range(3):
            going_on = np.zeros(3)
            for tokens, weight in out.items():
                if len(tokens) > 1 and tokens[0] == one:
                    going_on[tokens[1]] += weight
            assert np.abs(going_on - going_on.sum() * second.probs).max() < EXACT


@given(data=st.data(), token=st.integers(0, 3))
def test_a_point_law_is_the_written_out_law_of_one_token(data: st.DataObject, token: int) -> None:
    point, written = PointLaw(token), law(*(float(other == token) for other in range(4)))
    other = data.draw(laws(4))
    assert [point.probability(one) for one in range(4)] == written.probs.tolist()
    assert point.draw(5) == written.draw(5) == token
    assert point.residual(other).token_id == written.residual(other).draw(5)
    assert (other.residual(point).probs == other.residual(written).probs).all()
