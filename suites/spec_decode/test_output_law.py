"""What a round emits follows the target's law exactly: every branch of draft, lookup and rejection, weighed.

The joint law of the first two tokens over all rounds that it takes, against the product of the target's laws.
"""

from __future__ import annotations

import itertools
import math
from array import array

import numpy as np
import pytest

from engine.steps.draft import LookupSettings, find_match
from engine.steps.fusion import FusionSettings
from suites.spec_decode.branches import exact_law
from suites.spec_decode.worlds import Form, Lookup, Prefix, World, constant, declared, emit, remembering

pytestmark = pytest.mark.group("output law")

# A few hundred fp64 products of numbers below 1, and edges that are off by at most 2**-48 each.
EXACT = 1e-12

FIXED = [
    constant("published-pair", (0.8, 0.2), (0.5, 0.5)),
    constant("published-triple", (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)),
    constant("residual-of-two", (0.1, 0.45, 0.25, 0.2), (0.55, 0.05, 0.2, 0.2)),
    constant("equal", (0.3, 0.7), (0.3, 0.7)),
    constant("an-ulp-apart", (0.3, 0.7), (float(np.nextafter(0.3, 1)), 0.7)),
    constant("no-token-in-common", (0.6, 0.4, 0.0, 0.0), (0.0, 0.0, 0.7, 0.3)),
    constant("sure-draft", (0.3, 0.6, 0.1), (0.0, 1.0, 0.0)),
    constant("sure-target", (0.0, 1.0, 0.0), (0.4, 0.3, 0.3)),
    constant("unlikely-draft", (0.999, 0.001), (0.001, 0.999)),
]
RANDOM = [remembering(seed, vocab, zeros) for vocab, zeros in ((2, 0.0), (3, 0.3)) for seed in (1, 2, 3)]


def deviation(law: dict[Prefix, float], expected: dict[Prefix, float]) -> tuple[float, Prefix]:
    """The largest difference of two laws, and where it is."""
    return max((abs(law.get(tokens, 0.0) - expected.get(tokens, 0.0)), tokens) for tokens in {*law, *expected})


def assert_same_law(law: dict[Prefix, float], expected: dict[Prefix, float]) -> float:
    """Each probability within EXACT; returns the largest deviation."""
    worst, tokens = deviation(law, expected)
    assert worst <= EXACT, (
        f"tokens {tokens} come with probability {law.get(tokens, 0.0):.15f}, the target's is "
        f"{expected.get(tokens, 0.0):.15f}: off by {worst:.2e}, allowed {EXACT:.0e}"
    )
    return worst


def product_law(world: World, count: int) -> dict[Prefix, float]:
    """The target's own joint law, from the world's table alone."""
    return {tokens: world.joint(tokens) for tokens in itertools.product(range(world.vocab), repeat=count)}


@pytest.mark.parametrize("drafts", [0, 1, 2])
@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE])
@pytest.mark.parametrize("world", [*FIXED, *RANDOM], ids=lambda world: world.name)
def test_two_tokens(world: World, form: Form, drafts: int) -> None:
    assert_same_law(exact_law(emit(world, 2, drafts=drafts, form=form)), product_law(world, 2))


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE])
@pytest.mark.parametrize("world", [FIXED[0], RANDOM[3]], ids=lambda world: world.name)
def test_three_tokens_of_three_drafts(world: World, form: Form) -> None:
    assert_same_law(exact_law(emit(world, 3, drafts=3, form=form)), product_law(world, 3))


@pytest.mark.parametrize("drafts", [0, 1])
@pytest.mark.parametrize("world", [*FIXED[:2], FIXED[5], RANDOM[3]], ids=lambda world: world.name)
def test_two_tokens_out_of_logits(world: World, drafts: int) -> None:
    """The target as logits and a plan: its law is made of integer weights, and that law is met to the last digit."""
    expected = declared(world, 2, Form.LOGITS)
    assert_same_law(exact_law(emit(world, 2, drafts=drafts, form=Form.LOGITS)), expected)
    # A logit x is rounded once to fp32: its weight is off by |x| 2**-24, the sum of weights by as much, twice for two
    # tokens. The 1 covers the integer weights, which are within 2**-28.
    largest = max(abs(math.log(one)) for one in world.target(()) if one > 0)
    assert deviation(expected, product_law(world, 2))[0] < 4 * (largest + 1) * 2.0**-24


HISTORIES: dict[str, Prefix] = {
    "nothing-to-find": (1, 1, 0),
    "one-token": (0, 1, 1, 0),
    "weak": (1, 0, 1, 1, 1, 0, 0, 1, 0, 1),
    "weak-pair": (0, 0, 1, 1, 0, 0),
    "strong": (0, 1, 1, 0, 1, 0, 0, 1, 1, 0),
    "strong-over-itself": (0, 1, 0, 1, 0, 1, 0, 1),
}
SETTINGS = LookupSettings(min_match=1, max_match=12)


@pytest.mark.parametrize(
    ("history", "length", "continuation"),
    [
        ("nothing-to-find", 0, ()),
        ("one-token", 1, (1, 1, 0)),
        ("weak", 3, (1, 1, 0, 0)),
        ("weak-pair", 2, (1, 1, 0, 0)),
        ("strong", 4, (1, 0, 0, 1)),
        ("strong-over-itself", 6, (0, 1)),
    ],
)
def test_the_histories_match_as_they_are_called(history: str, length: int, continuation: Prefix) -> None:
    match = find_match(array("i", HISTORIES[history]), 4, SETTINGS)
    assert (match.length, match.continuation) == (length, continuation) if match is not None else length == 0


@pytest.mark.parametrize("tail", [0, 1], ids=["block", "tail"])
@pytest.mark.parametrize("agree", [0, 1, 3])
@pytest.mark.parametrize("history", HISTORIES)
def test_two_tokens_with_a_lookup(history: str, agree: int, tail: int) -> None:
    """Weak and strong matches, found by the engine itself in what was emitted; AGREE 0, 1 and 3."""
    drafts = 3 if agree == 3 else 2
    lookup = Lookup(
        HISTORIES[history],
        SETTINGS,
        FusionSettings(weak=2, strong=4, agree=agree, tail=2),
        width=drafts + tail,
    )
    world = remembering(11, 2, 0.0)
    assert_same_law(exact_law(emit(world, 2, drafts=drafts, lookup=lookup)), product_law(world, 2))
