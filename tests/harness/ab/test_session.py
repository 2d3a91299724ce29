"""The interleaving and the stopping, with neither a process nor a clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist, median, pstdev

import pytest

from harness.ab.errors import RepeatError
from harness.ab.repeat import Prompt, Repeat
from harness.ab.session import BASE, HEAD, TURNS, WHOLE, Ask, Session, outcome, run_session, samples
from harness.pairs import control_spread
from harness.verdict import MetricOutcome

ASK = Ask("s", (("fast",),))
Factor = Callable[[str, int], float]


def repeat(
    arm: str, factor: float, at: float = 0.0, tokens: Sequence[int] = (1, 2, 3, 4), finish: str = "stop"
) -> Repeat:
    stamps = tuple(1.0 + 0.01 * factor * i for i in range(len(tokens)))
    prompt = Prompt("p", tuple(tokens), "stop", 0.99, stamps, (1,) * (len(tokens) - 1))
    return Repeat(f"{at}.json", arm, (prompt,), (), at, at + 1)


class Machine:
    """Makes repeats: ``factor(side, call)`` is how slow the call-th process is."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.calls: list[str] = []

    def make(self, sides: tuple[str, ...], arms: tuple[str, ...], labels: tuple[str, ...]) -> list[dict[str, Repeat]]:
        made = []
        for side, label in zip(sides, labels, strict=True):
            self.calls.append(f"{side[0]}{label.removeprefix('control').lstrip('0') or 0}")
            now = float(len(self.calls))
            made.append({arm: repeat(arm, self.factor(side, len(self.calls)), now) for arm in arms})
        return made

    def clock(self) -> float:
        return float(len(self.calls))


def run(factor: Factor, ask: Ask = ASK, **named: object) -> tuple[Session, Machine]:
    machine = Machine(factor)
    return run_session(ask, machine.make, machine.clock, **named), machine  # type: ignore[arg-type]


def noisy(seed: int, slow: float = 1.0, burst: float = 0.25) -> Factor:
    draw = random.Random(seed)

    def factor(side: str, call: int) -> float:
        neighbour = draw.uniform(1.05, 1.12) if draw.random() < burst / 2 else 1.0
        return (slow if side == HEAD else 1.0) * draw.gauss(1.0, 0.004) * neighbour

    return factor


def test_who_begins_a_pair_alternates_and_every_fourth_is_followed_by_a_control() -> None:
    session, machine = run(lambda side, call: 1.03 if side == HEAD else 1.0)
    expected = "b0 h0 b1 h1 h2 b2 b3 h3 h4 b4 b1a b1b b5 h5 h6 b6 b7 h7 h8 b8 h2a h2b"
    assert " ".join(machine.calls) == expected
    assert session.ended == "decided after 8 of 24 pairs"
    assert outcome(session, "fast", "round") is MetricOutcome.WORSE
    assert [control.side for control in session.controls["fast"]] == [BASE, HEAD]


def test_whole_processes_run_abba_and_have_their_control_in_it() -> None:
    ask = replace(ASK, order=WHOLE, why="fast of base takes no turns")
    session, machine = run(lambda side, call: 1.03 if side == HEAD else 1.0, ask)
    assert " ".join(machine.calls) == "b0 h0 b1 h1 h2 b2 b3 h3 h4 b4 b5 h5 h6 b6 b7 h7 h8 b8"
    pairing = samples(session, BASE, "fast", "round").pairing
    assert pairing is not None
    assert pairing.order == "processes: base, head, head, base (fast of base takes no turns)"
    assert pairing.control is None


def test_turns_without_a_control_pair_yet_have_no_control() -> None:
    """Neighbours of one build are then minutes apart in a machine's noise: they say nothing about pairs in turn."""
    ask = replace(ASK, most_pairs=2)
    session, _ = run(lambda side, call: 1 + 0.3 * (call > 4), ask)
    pairing = samples(session, BASE, "fast", "round").pairing
    assert pairing is not None
    assert (pairing.control, pairing.margin_source) == ((), "floor")


@pytest.mark.parametrize(("slow", "least"), [(1.03, 0.95), (1.02, 0.80)])
def test_noise_of_a_shared_machine_hides_no_small_loss(slow: float, least: float) -> None:
    """One process in eight is off by 5-12 %. 200 sessions: two standard deviations below 95 and 80 % are allowed."""
    found = [outcome(run(noisy(seed, slow))[0], "fast", "round") for seed in range(200)]
    share = found.count(MetricOutcome.WORSE) / 200
    assert share >= least - 2 * (least * (1 - least) / 200) ** 0.5


def test_noise_alone_raises_no_alarm() -> None:
    found = [outcome(run(noisy(seed))[0], "fast", "round") for seed in range(200)]
    assert sum(word in (MetricOutcome.WORSE, MetricOutcome.BETTER) for word in found) / 200 <= 1 / 40


def test_a_linear_drift_is_no_change_and_is_said() -> None:
    session, _ = run(lambda side, call: 1.0 + 0.004 * call, replace(ASK, floor=0.02))
    assert outcome(session, "fast", "round") is MetricOutcome.SAME


def test_the_margin_is_the_largest_of_three_and_says_which() -> None:
    session, _ = run(lambda side, call: 1.0)
    margin = samples(session, BASE, "fast", "round").pairing
    assert margin is not None
    assert (margin.margin, margin.margin_source) == (0.01, "floor")
    session, _ = run(lambda side, call: 1.0, replace(ASK, history={"fast": 0.04}))
    margin = samples(session, BASE, "fast", "round").pairing
    assert margin is not None
    assert margin.margin == 0.04
    assert margin.margin_source.startswith("history")
    for order in (TURNS, WHOLE):
        slower = {TURNS: lambda call: call % 2 == 0, WHOLE: lambda call: call % 4 in (1, 2)}[order]
        session, _ = run(lambda side, call, slower=slower: 1 + 0.03 * slower(call), replace(ASK, order=order))  # type: ignore[misc]
        margin = samples(session, BASE, "fast", "round").pairing
        assert margin is not None
        assert margin.margin_source.startswith("A/A")


def test_the_margin_shrinks_with_the_pairs_as_what_they_can_be_off_by_does() -> None:
    """Controls that are off by 1.4826 % of a standard deviation each: eight pairs of such noise, their median."""
    deviation = 0.02
    off = NormalDist().inv_cdf(0.75) * deviation
    assert control_spread([off, -off], 8) == pytest.approx(deviation * math.sqrt(math.pi / 2 / 8), rel=0.01)
    draw = random.Random(3)
    medians = [median(draw.gauss(0, deviation) for _ in range(24)) for _ in range(4000)]
    assert control_spread([off, off, -off], 24) == pytest.approx(pstdev(medians), rel=0.1)


def test_a_budget_ends_it_undecided() -> None:
    session, _ = run(lambda side, call: 1.0 + 0.1 * ((call * 7919) % 13) / 13, replace(ASK, budget_s=30))
    assert session.ended.startswith("the budget of 30 s is spent after")
    assert outcome(session, "fast", "round") is MetricOutcome.UNDECIDED


def test_a_block_that_a_witness_excuses_is_measured_again_and_capped() -> None:
    def always(start: float, end: float) -> Sequence[str]:
        return ("the GPU's clocks were held down: sw_thermal_slowdown",)

    session, machine = run(lambda side, call: 1.0, replace(ASK, order=WHOLE), excuses=always)
    assert len(session.excused) == 3  # a quarter of the twelve blocks planned
    assert len(session.doubts) > 0
    assert session.doubts[0].startswith("kept, since 3 blocks were left out already: the GPU's clocks")
    assert len(machine.calls) == 2 + 4 * (3 + session.pairs // 2)
    assert len({call for call in machine.calls if call.startswith("b")}) == len(machine.calls) // 2  # no name twice


def test_all_arms_are_judged_together() -> None:
    ask = replace(ASK, groups=(("fast", "slow"), ("other",)))
    assert ask.each_alpha == pytest.approx(0.05 / 6)
    machine = Machine(lambda side, call: 1.0)
    session = run_session(ask, machine.make, machine.clock)
    assert session.pairs >= 8
    assert machine.calls[:6] == ["b0", "h0", "b0", "h0", "b1", "h1"]
    assert set(session.controls) == {"fast", "slow", "other"}


def test_a_repeat_that_fails_ends_it_and_keeps_the_pairs() -> None:
    machine = Machine(lambda side, call: 1.0)

    def make(sides: tuple[str, ...], arms: tuple[str, ...], labels: tuple[str, ...]) -> list[dict[str, Repeat]]:
        if len(machine.calls) == 8:
            raise RepeatError(f"repeat {labels[0]} of head: it died", "look", crashed=True)
        return machine.make(sides, arms, labels)

    session = run_session(ASK, make, machine.clock)
    assert (session.pairs, session.side, session.crashed) == (2, HEAD, True)
    assert session.problem.endswith("-> look")


def test_tokens_that_differ_between_repeats_of_one_build_end_it() -> None:
    machine = Machine(lambda side, call: 1.0)

    def make(sides: tuple[str, ...], arms: tuple[str, ...], labels: tuple[str, ...]) -> list[dict[str, Repeat]]:
        made = machine.make(sides, arms, labels)
        return made if len(machine.calls) != 6 else [made[0], {"fast": repeat("fast", 1.0, 6.0, (1, 2, 9, 4))}]

    session = run_session(ASK, make, machine.clock)
    assert session.difference is not None
    assert "base against repeat 2 of base: other tokens: prompt 'p', token 2: 3, then 9" in str(session.difference)
    assert session.difference.before == (1, 2)
