"""The interleaving and the stopping, with neither a process nor a clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from harness.ab.repeat import Prompt, Repeat, RepeatError
from harness.ab.session import BASE, HEAD, Ask, Session, outcome, run_session, samples
from harness.model import MetricOutcome

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

    def make(self, side: str, arms: tuple[str, ...], number: int) -> dict[str, Repeat]:
        self.calls.append(f"{side[0]}{number}")
        now = float(len(self.calls))
        return {arm: repeat(arm, self.factor(side, len(self.calls)), now) for arm in arms}

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


def test_order_is_one_warm_up_each_and_then_abba() -> None:
    session, machine = run(lambda side, call: 1.03 if side == HEAD else 1.0)
    assert " ".join(machine.calls) == "b0 h0 b1 h1 h2 b2 b3 h3 h4 b4 b5 h5 h6 b6 b7 h7 h8 b8"
    assert session.ended == "decided after 8 of 24 pairs"
    assert outcome(session, "fast", "round") is MetricOutcome.WORSE


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
    session, _ = run(lambda side, call: 1.0 + 0.03 * (call % 4 in (1, 2)))  # every second of two neighbours is slower
    margin = samples(session, BASE, "fast", "round").pairing
    assert margin is not None
    assert margin.margin_source.startswith("A/A")


def test_a_budget_ends_it_undecided() -> None:
    session, _ = run(lambda side, call: 1.0 + 0.1 * ((call * 7919) % 13) / 13, replace(ASK, budget_s=30))
    assert session.ended.startswith("the budget of 30 s is spent after")
    assert outcome(session, "fast", "round") is MetricOutcome.UNDECIDED


def test_a_block_that_a_witness_excuses_is_measured_again_and_capped() -> None:
    def always(start: float, end: float) -> Sequence[str]:
        return ("the GPU's clocks were held down: sw_thermal_slowdown",)

    session, machine = run(lambda side, call: 1.0, excuses=always)
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


def test_a_repeat_that_fails_ends_it_and_keeps_the_pairs() -> None:
    machine = Machine(lambda side, call: 1.0)

    def make(side: str, arms: tuple[str, ...], number: int) -> dict[str, Repeat]:
        if len(machine.calls) == 8:
            raise RepeatError(f"repeat {number} of {side}: it died", "look", crashed=True)
        return machine.make(side, arms, number)

    session = run_session(ASK, make, machine.clock)
    assert (session.pairs, session.side, session.crashed) == (2, HEAD, True)
    assert session.problem.endswith("-> look")


def test_tokens_that_differ_between_repeats_of_one_build_end_it() -> None:
    machine = Machine(lambda side, call: 1.0)

    def make(side: str, arms: tuple[str, ...], number: int) -> dict[str, Repeat]:
        made = machine.make(side, arms, number)
        return made if len(machine.calls) != 6 else {"fast": repeat("fast", 1.0, 6.0, (1, 2, 9, 4))}

    session = run_session(ASK, make, machine.clock)
    assert session.difference is not None
    assert "base against repeat 2 of base: other tokens: prompt 'p', token 2: 3, then 9" in str(session.difference)
    assert session.difference.before == (1, 2)
