"""The definitions of a round's figures, held to six published runs whose tokens, rates and rounds are known."""

from __future__ import annotations

import hashlib

import pytest

from suites.latency import control, figures
from suites.latency.figures import PromptRun

pytestmark = pytest.mark.group("definitions")

# tokens, decode tokens a second, rounds -> milliseconds per round, tokens per round
PUBLISHED = [
    (248, 154.434, 82, 19.505, 3.024),
    (270, 234.829, 60, 19.092, 4.500),
    (303, 135.033, 111, 20.149, 2.730),
    (260, 267.695, 49, 19.745, 5.306),
    (318, 152.826, 115, 18.037, 2.765),
    (308, 268.541, 65, 17.588, 4.738),
]


def _run(tokens: int, rounds: int, seconds: float, *, prompt: str = "p", finish: str = "stop") -> PromptRun:
    """``rounds`` equal rounds over ``seconds``, the first token half a second after arrival."""
    base, extra = divmod(tokens - 1, rounds)
    emitted = tuple(base + (index < extra) for index in range(rounds))
    stamps = tuple(100.5 + seconds * index / rounds for index in range(rounds + 1))
    return PromptRun(prompt, tuple(range(tokens)), finish, 100.0, stamps, emitted)


@pytest.mark.parametrize(("tokens", "rate", "rounds", "round_ms", "per_round"), PUBLISHED)
def test_published_runs(tokens: int, rate: float, rounds: int, round_ms: float, per_round: float) -> None:
    """The published figures have three decimals: half a unit in the last one is their own rounding."""
    runs = [_run(tokens, rounds, (tokens - 1) / rate)]
    assert figures.round_ms(runs) == pytest.approx(round_ms, abs=0.0005)
    assert figures.emitted_per_round(runs) == pytest.approx(per_round, abs=0.0005)
    assert figures.decode_tokens_per_second(runs) == pytest.approx(rate, rel=1e-9)


def test_prefill_and_the_first_token_are_outside_the_round() -> None:
    slow_start = PromptRun("p", (1, 2, 3), "stop", 0.0, (10.0, 10.1, 10.2), (1, 1))
    assert figures.round_ms([slow_start]) == pytest.approx(100.0)
    assert figures.ttft_ms([slow_start]) == pytest.approx(10_000.0)
    assert figures.round_times_ms([slow_start]) == pytest.approx([100.0, 100.0])


def test_a_repeat_is_one_number_over_its_prompts() -> None:
    """30 ms over 3 rounds and 18 ms over 1: 12 ms, not 14, the mean of the prompts' means."""
    runs = [_run(4, 3, 0.030), _run(2, 1, 0.018, prompt="other")]
    assert figures.round_ms(runs) == pytest.approx(12.0)
    assert figures.rounds(runs) == 4


def test_histogram_counts_rounds_by_what_they_emitted() -> None:
    run = PromptRun("p", tuple(range(8)), "stop", 0.0, (1.0, 2.0, 3.0, 4.0), (1, 5, 1))
    assert figures.emission_histogram([run]) == [0, 2, 0, 0, 0, 1]


def test_hash_is_over_little_endian_int32() -> None:
    expected = hashlib.sha256(bytes.fromhex("01000000 02000000 00010000")).hexdigest()
    runs = [
        PromptRun("a", (1, 2), "stop", 0.0, (1.0, 2.0), (1,)),
        PromptRun("b", (256,), "stop", 0.0, (1.0,), ()),
    ]
    assert figures.tokens_sha256(runs) == expected


@pytest.mark.parametrize(
    ("token_ts", "emitted", "said"),
    [((1.0, 2.0, 3.0), (2,), "3 timestamps"), ((1.0, 2.0), (3,), "3 tokens"), ((2.0, 1.0), (2,), "backwards")],
    ids=["stamps", "tokens", "clock"],
)
def test_an_inconsistent_run_cannot_be_built(token_ts: tuple[float, ...], emitted: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PromptRun("p", (7, 8, 9), "stop", 0.0, token_ts, emitted)


def test_a_length_stop_is_refused() -> None:
    with pytest.raises(AssertionError, match="'other' ended by 'length' after 4 tokens"):
        control.require_natural_stop([_run(3, 2, 0.1), _run(4, 3, 0.1, prompt="other", finish="length")])


def test_different_tokens_are_refused_by_name() -> None:
    one = PromptRun("p", (7, 8, 9), "stop", 0.0, (1.0, 2.0), (2,))
    other = PromptRun("p", (7, 5, 9), "stop", 0.0, (1.0, 2.0), (2,))
    longer = PromptRun("p", (7, 8, 9, 2), "stop", 0.0, (1.0, 2.0), (3,))
    assert control.require_same_tokens([[one], [one]], "repeat") == figures.tokens_sha256([one])
    with pytest.raises(AssertionError, match="repeat 1 against 0: prompt 'p', token 1: 5, not 8"):
        control.require_same_tokens([[one], [other]], "repeat")
    with pytest.raises(AssertionError, match="4 tokens, not 3"):
        control.require_same_tokens([[one], [longer]], "repeat")
