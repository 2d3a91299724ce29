"""Which drafts stay and what follows them: every edge of the rule, with the target written out, sparse or as logits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from engine.request import SamplingParams
from engine.sampling.random import Purpose
from engine.steps.laws import verification_of
from engine.steps.records import (
    Acceptance,
    Fault,
    LastToken,
    PointLaw,
    Proposal,
    TargetLaw,
    TokenLaw,
    Verification,
    unit_interval,
)
from engine.steps.reject import reject
from suites.spec_decode.branches import Branch, exact_law
from suites.spec_decode.worlds import Form

pytestmark = pytest.mark.group("rejection")

FIRST = 12
LARGEST_K = 31
LOWEST, HIGHEST = 0, 2**64 - 1  # the generator's bits; as uniform numbers 2**-53 and 1 - 2**-53
FORMS = [Form.DENSE, Form.SPARSE, Form.LOGITS]
EXACT = 1e-12
VOCAB = 5

Probs = Sequence[float]


@dataclass
class Same:
    """The same bits whatever is asked for; remembers the questions."""

    number: int
    asked: list[tuple[int, Purpose]] = field(default_factory=list)

    def bits(self, position: int, purpose: Purpose) -> int:
        self.asked.append((position, purpose))
        return self.number

    def uniform(self, position: int, purpose: Purpose) -> float:
        return unit_interval(self.bits(position, purpose))


def law(probs: Probs, *, sparse: bool = False) -> TokenLaw:
    values = np.array(probs)
    kept = np.flatnonzero(values) if sparse else np.arange(len(values))
    return TokenLaw(kept, values[kept])


def rows(targets: Sequence[Probs], form: Form) -> Verification:
    """One row a law, in the form asked for."""
    if form is not Form.LOGITS:
        return Verification(FIRST, tuple(law(one, sparse=form is Form.SPARSE) for one in targets))
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(np.array(targets)).astype(np.float32))
    verification = verification_of(FIRST, logits, SamplingParams(temperature=1.0))
    assert isinstance(verification, Verification)
    return verification


def drafted(tokens: Sequence[int], probs: Probs) -> Proposal:
    return Proposal(tuple(tokens), (law(probs),) * len(tokens))


LIKELY = (0.0, 0.5, 0.25, 0.25, 0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("drafts", [1, 2, 7, 15, LARGEST_K])
def test_all_stay_when_the_target_likes_them_as_much(drafts: int, form: Form) -> None:
    """Drafted from the target's own law, no number is asked for but the bonus token's: no unlucky one can reject."""
    noise = Same(HIGHEST)
    tokens = tuple(itertools.islice(itertools.cycle((1, 2, 3)), drafts))
    targets = rows([LIKELY] * (drafts + 1), form)
    own = [targets.target_laws[0].probability(token) for token in range(VOCAB)]
    acceptance = reject(drafted(tokens, own), targets, noise)
    assert acceptance == Acceptance(tokens, 3, LastToken.BONUS)
    assert noise.asked == [(FIRST + drafts, Purpose.TARGET)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", range(7))
def test_the_first_mismatch_ends_the_round(step: int, form: Form) -> None:
    """Whatever stands after it, and even where all of that would stay."""
    tokens = [1] * 7
    targets: list[Probs] = [LIKELY] * 8
    targets[step] = (0.0, 0.0, 0.0, 0.5, 0.5)
    noise = Same(LOWEST)
    acceptance = reject(drafted(tokens, LIKELY), rows(targets, form), noise)
    assert acceptance == Acceptance((1,) * step, 3, LastToken.RECOVERED)
    assert noise.asked == [(FIRST + step, Purpose.ACCEPT), (FIRST + step, Purpose.RECOVER)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("number", "token"), [(LOWEST, 1), (2**63 - 1, 1), (2**63 + 2**62 - 1, 2), (HIGHEST, 3)])
def test_an_empty_draft_is_plain_decode(number: int, token: int, form: Form) -> None:
    noise = Same(number)
    assert reject(Proposal(), rows([LIKELY], form), noise) == Acceptance((), token, LastToken.BONUS)
    assert noise.asked == [(FIRST, Purpose.TARGET)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("number", [LOWEST, HIGHEST])
def test_a_token_without_target_mass_never_stays(number: int, form: Form) -> None:
    """u is above 0: with a u of 0, or with >= for >, the lowest number would let it pass."""
    targets = [(0.0, 0.0, 1.0, 0.0, 0.0), LIKELY]
    acceptance = reject(drafted([1], LIKELY), rows(targets, form), Same(number))
    assert acceptance == Acceptance((), 2, LastToken.RECOVERED)


@pytest.mark.parametrize("form", FORMS)
def test_the_threshold_is_target_over_draft(form: Form) -> None:
    """Draft 1/2, target 1/4 (both exact): the numbers below 1/2 accept, those from 1/2 on do not."""
    half = 1 << 63
    targets = [(0.25, 0.25, 0.25, 0.25, 0.0), LIKELY]
    below, above = (reject(drafted([1], LIKELY), rows(targets, form), Same(bits)) for bits in (half - 4096, half))
    assert (below.source, above.source) == (LastToken.BONUS, LastToken.RECOVERED)


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE])
def test_where_nothing_is_left_the_target_is_drawn(form: Form) -> None:
    """An ulp apart, the target is nowhere above the draft and yet a draft can be rejected: no token out of thin air."""
    target = (0.3, 0.7, 0.0, 0.0, 0.0)
    draft_law = law((float(np.nextafter(0.3, 1)), 0.7, 0.0, 0.0, 0.0))
    acceptance = reject(Proposal((0,), (draft_law,)), rows([target, LIKELY], form), Same(HIGHEST))
    assert acceptance == Acceptance((), 1, LastToken.RECOVERED)


@pytest.mark.parametrize("number", [LOWEST, 2**62, HIGHEST])
def test_a_rejected_point_mass_never_comes_back(number: int) -> None:
    """The residual of a looked-up token is the target without it."""
    target = (0.25, 0.25, 0.25, 0.125, 0.125)
    for form, token in itertools.product(FORMS, range(VOCAB)):
        proposal = Proposal((token,), (PointLaw(token),))
        rest = rows([target], form).target_laws[0].residual(proposal.draft_laws[0])
        assert rest.draw(number) != token


@pytest.mark.parametrize("form", FORMS)
def test_a_sure_target_that_was_drafted_stays(form: Form) -> None:
    sure = (0.0, 0.0, 1.0, 0.0, 0.0)
    proposal = Proposal((2, 2), (PointLaw(2), law(LIKELY)))
    assert reject(proposal, rows([sure] * 3, form), Same(HIGHEST)) == Acceptance((2, 2), 2, LastToken.BONUS)


@pytest.mark.parametrize("best", range(1, VOCAB))
def test_greedy_ties_go_to_the_lowest_id(best: int) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, best:] = 3.0
    verification = verification_of(FIRST, logits, SamplingParams())
    assert isinstance(verification, Verification)
    assert reject(drafted([best], (0.2,) * 5), verification, Same(HIGHEST)) == Acceptance(
        (best,), best, LastToken.BONUS
    )
    other = (best + 1) % VOCAB
    rejected = reject(drafted([other], (0.2,) * 5), verification, Same(LOWEST))
    assert rejected == Acceptance((), best, LastToken.RECOVERED)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_of_different_width_do_not_touch_each_other(temperature: float) -> None:
    """K = 0, 1, 3, 7 packed one after another give what each gives alone."""
    rng = np.random.default_rng(5)
    widths = [0, 1, 3, 7]
    logits = torch.from_numpy(rng.normal(size=(sum(widths) + len(widths), 50)).astype(np.float32) * 3)
    params = SamplingParams(temperature=temperature, top_k=20, top_p=0.9)
    own = law((1 / 50,) * 50)
    start = 0
    for width in widths:
        packed = logits[start : start + width + 1]
        proposal = Proposal(tuple(rng.integers(0, 50, width).tolist()), (own,) * width)
        together, alone = (verification_of(FIRST, one, params) for one in (packed, packed.clone()))
        assert isinstance(together, Verification)
        assert isinstance(alone, Verification)
        for number in (LOWEST, 2**62, 2**63, HIGHEST):
            assert reject(proposal, together, Same(number)) == reject(proposal, alone, Same(number))
        start += width + 1


@pytest.mark.parametrize("rows_given", [0, 1, 3, 4])
def test_rows_that_are_not_one_more_than_the_drafts_are_refused(rows_given: int) -> None:
    if rows_given == 0:
        with pytest.raises(ValueError, match="a verification without rows"):
            rows([], Form.DENSE)
        return
    with pytest.raises(ValueError, match=f"{rows_given} target rows for 1 drafts; allowed: 2"):
        reject(drafted([1], LIKELY), rows([LIKELY] * rows_given, Form.DENSE), Same(LOWEST))


def test_a_token_that_its_own_law_cannot_draw_is_refused() -> None:
    """Cache and sample disagree: that is a defect to be reported, never an acceptance by q = 0."""
    with pytest.raises(ValueError, match="token 0 was drafted but its law gives it no probability"):
        drafted([0], LIKELY)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((0.0, float("nan"), 1.0), "the logits contain NaN"),
        ((0.0, float("inf"), 1.0), "the logits contain +inf"),
        ((float("-inf"),) * 3, "every logit is -inf"),
    ],
    ids=["nan", "inf", "nothing"],
)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_row_without_a_law_names_its_position(row: tuple[float, ...], reason: str, bad: int) -> None:
    logits = torch.zeros(3, 3)
    logits[bad] = torch.tensor(row)
    fault = verification_of(FIRST, logits, SamplingParams(temperature=0.5))
    assert isinstance(fault, Fault)
    assert f"position {FIRST + bad}" in fault.reason
    assert reason in fault.reason
    greedy = verification_of(FIRST, logits, SamplingParams())
    assert isinstance(greedy, Fault)
    assert f"position {FIRST + bad}" in greedy.reason


BETAS = {0.2: (0.2, 0.8), 0.5: (0.5, 0.5), 0.8: (0.8, 0.2), 0.95: (0.95, 0.05)}


@pytest.mark.parametrize("drafts", [1, 3, 7, 15])
@pytest.mark.parametrize("beta", BETAS)
def test_the_count_follows_the_power_law(beta: float, drafts: int) -> None:
    """Sure drafts that the target takes with probability beta: more than j tokens come with probability beta**j."""
    targets = rows([BETAS[beta]] * (drafts + 1), Form.DENSE)
    proposal = Proposal((0,) * drafts, (PointLaw(0),) * drafts)

    def count(noise: Branch) -> int:
        for step in range(drafts):
            noise.expect(FIRST + step, Purpose.ACCEPT, (beta,))
        return len(reject(proposal, targets, noise).emitted)

    out = exact_law(count)
    for emitted in range(1, drafts + 2):
        more = sum(share for length, share in out.items() if length >= emitted)
        assert more == pytest.approx(beta ** (emitted - 1), abs=EXACT)
    mean = sum(length * share for length, share in out.items())
    assert mean == pytest.approx((1 - beta ** (drafts + 1)) / (1 - beta), abs=EXACT * drafts)


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize(
    ("target", "drafter"),
    [((0.5, 0.3, 0.2), (0.2, 0.5, 0.3)), ((0.1, 0.45, 0.45), (0.6, 0.2, 0.2)), ((0.4, 0.6, 0.0), (0.4, 0.0, 0.6))],
    ids=["three", "two-residual", "missing"],
)
def test_the_count_of_drawn_drafts_follows_the_overlap(target: Probs, drafter: Probs, drafts: int) -> None:
    """beta = sum min(target, draft), whatever the tokens are."""
    draft_law = law(drafter)
    targets = rows([target] * (drafts + 1), Form.SPARSE)

    def count(noise: Branch) -> int:
        tokens: tuple[int, ...] = ()
        for step in range(drafts):
            tokens = (*tokens, draft_law.draw(noise.bits(FIRST + step, Purpose.DRAFT)))
            noise.note(tokens)
        return len(reject(Proposal(tokens, (draft_law,) * drafts), targets, noise).emitted)

    out, beta = exact_law(count), float(np.minimum(target, drafter).sum())
    for emitted in range(1, drafts + 2):
        more = sum(share for length, share in out.items() if length >= emitted)
        assert more == pytest.approx(beta ** (emitted - 1), abs=EXACT)


def test_noise_shared_by_draft_and_recovery_would_show() -> None:
    """The control of the enumeration: with two residual tokens, the draft's own number used again moves the law."""
    target, drafter = (0.1, 0.45, 0.25, 0.2), (0.55, 0.05, 0.2, 0.2)
    draft_law, targets = law(drafter), rows([target, target], Form.DENSE)

    @dataclass
    class Sharing:
        branch: Branch

        def bits(self, position: int, purpose: Purpose) -> int:
            return self.branch.bits(position, Purpose.DRAFT if purpose is Purpose.RECOVER else purpose)

        def uniform(self, position: int, purpose: Purpose) -> float:
            return self.branch.uniform(position, purpose)

    def first(noise: Branch, shared: bool) -> int:
        token = draft_law.draw(noise.bits(FIRST, Purpose.DRAFT))
        noise.note(token)
        judged_by = Sharing(noise) if shared else noise
        return reject(Proposal((token,), (draft_law,)), targets, judged_by).emitted[0]

    right, wrong = (exact_law(functools.partial(first, shared=shared)) for shared in (False, True))
    assert [right[token] for token in range(4)] == pytest.approx(target, abs=EXACT)
    assert max(abs(wrong.get(token, 0.0) - target[token]) for token in range(4)) > 0.01


def residual_in_fp64(target: Probs, drafter: Probs) -> list[float]:
    left = np.maximum(np.array(target) - np.array(drafter), 0)
    out: list[float] = (left / left.sum()).tolist()
    return out


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE])
@pytest.mark.parametrize("seed", range(6))
def test_the_residual_is_what_the_target_has_above_the_draft(seed: int, form: Form) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 6, (2, VOCAB)) + np.eye(VOCAB, dtype=int)[:2]
    target, drafter = (tuple(one / one.sum()) for one in weights)
    rest: TargetLaw = rows([target], form).target_laws[0].residual(law(drafter, sparse=form is Form.SPARSE))
    assert [rest.probability(token) for token in range(VOCAB)] == pytest.approx(
        residual_in_fp64(target, drafter), abs=EXACT
    )
