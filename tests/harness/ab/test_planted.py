"""The judge is tried before it judges: each fault of the A/B path, planted by hand, turns its check red."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from harness import pairs
from harness.ab.errors import RepeatError
from harness.ab.repeat import Prompt, Repeat, parse
from harness.ab.session import HEAD, Ask, outcome, run_session, samples
from harness.comparability import differences
from harness.machine.lease import CPU, LeaseError, acquire
from harness.sequential import Look
from harness.verdict import Interval, MetricOutcome
from tests.harness.ab.test_session import ASK, Machine, repeat
from tests.harness.ab.test_together import printed

Check = Callable[[Path], None]


def _ended_by(change: Callable[[Repeat], Repeat]) -> None:
    """A session whose head did other work must end without a verdict."""
    machine = Machine(lambda side, call: 1.0)

    def make(sides: tuple[str, ...], arms: tuple[str, ...], labels: tuple[str, ...]) -> list[dict[str, Repeat]]:
        made = machine.make(sides, arms, labels)
        return [
            {arm: change(found) if side == HEAD else found for arm, found in one.items()}
            for side, one in zip(sides, made, strict=True)
        ]

    assert run_session(ASK, make, machine.clock).difference is not None


def unequal_tokens(_: Path) -> None:
    _ended_by(lambda made: repeat("fast", 1.0, 1.0, (1, 2, 9, 4)))


def length_stop(_: Path) -> None:
    _ended_by(lambda made: replace(made, prompts=(replace(made.prompts[0], finish="length"),)))


def profiled_run(_: Path) -> None:
    _ended_by(lambda made: replace(made, unfit=("sys.setprofile holds a hook",)))


def a_stall_is_not_a_slowdown(_: Path) -> None:
    """A neighbour that takes one round in three moves no figure."""
    base = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    head = [value * (9 if place % 3 == 1 else 1) for place, value in enumerate(base)]
    assert pairs.matched_log_ratio(base, head) == 0.0


def three_repeats_decide_nothing(_: Path) -> None:
    machine = Machine(lambda side, call: 1.3 if side == HEAD else 1.0)
    ended = run_session(replace(ASK, most_pairs=2), machine.make, machine.clock)
    assert outcome(ended, "fast", "round") is MetricOutcome.UNDECIDED


def first_token_is_outside_the_round(_: Path) -> None:
    assert repeat("fast", 1.0).round_ms == pytest.approx(10.0)


def all_arms_share_one_allowance(_: Path) -> None:
    ask = Ask("s", (tuple(f"arm{number}" for number in range(10)),))
    assert ask.each_alpha * 20 == pytest.approx(ask.alpha)


def sets_of_gpus_are_not_pooled(_: Path) -> None:
    one, other = {"gpu.uuids": "GPU-0, GPU-1"}, {"gpu.uuids": "GPU-4, GPU-5"}
    facts = {"device_key": "sm70-x2", "cpu.model": "x"}
    assert [row.key for row in differences({**facts, **one}, {**facts, **other}) if row.fatal] == ["gpu.uuids"]


def a_lease_is_held_to_the_end(folder: Path) -> None:
    with (
        acquire([CPU], folder=folder, command="measuring", environ={}, timeout_s=0),
        pytest.raises(LeaseError, match="in use by"),
    ):
        acquire([CPU], folder=folder, command="another", environ={}, timeout_s=0)


def waits_are_no_time_of_ours(_: Path) -> None:
    assert parse(printed(), "r", "f")["fast"].rounds == pytest.approx([500.0, 500.0, 750.0])


def a_kept_turn_is_refused(_: Path) -> None:
    with pytest.raises(RepeatError, match="no turn was handed on"):
        parse(printed(waits=[[1.2, 1.7], [4.1, 4.6]]), "r", "f")


def the_margin_is_held_to_the_control(_: Path) -> None:
    machine = Machine(lambda side, call: 1 + 0.03 * (call % 2 == 0))
    pairing = samples(run_session(ASK, machine.make, machine.clock), HEAD, "fast", "round").pairing
    assert pairing is not None
    assert pairing.margin > ASK.floor


def _nothing_differs(one: Repeat, other: Repeat, what: str) -> None:
    return None


def _any_interval(log_ratios: Sequence[float], look: Look, alpha: float) -> Interval:
    return Interval(math.exp(min(log_ratios)), math.exp(max(log_ratios)), 1 - alpha, "all of them")


def _from_arrival(prompt: Prompt) -> list[float]:
    return [1000 * (prompt.stamps[-1] - prompt.arrival) / len(prompt.emitted)] * len(prompt.emitted)


# The fault; what is replaced, by what; the check that must notice it.
PLANTED: dict[str, tuple[str, Any, Check]] = {
    "unequal hash compared anyway": ("harness.ab.session.other_work", _nothing_differs, unequal_tokens),
    "max-tokens stop accepted": ("harness.ab.session.other_work", _nothing_differs, length_stop),
    "profiled run recorded": ("harness.ab.session.other_work", _nothing_differs, profiled_run),
    "pooled GPU sets": ("harness.comparability.TIMING_CONTRACT", {}, sets_of_gpus_are_not_pooled),
    "mean for median": ("harness.pairs.median", lambda values: fmean(list(values)), a_stall_is_not_a_slowdown),
    "three repeats called significant": ("harness.pairs.interval_at", _any_interval, three_repeats_decide_nothing),
    "first token counted in the round": (
        "harness.ab.repeat.Prompt.round_ms",
        property(_from_arrival),
        first_token_is_outside_the_round,
    ),
    "each arm may err by the whole": (
        "harness.ab.session.share",
        lambda alpha, quantities: alpha,
        all_arms_share_one_allowance,
    ),
    "the other side's turn counted as ours": (
        "harness.ab.waits.Waits.left_out",
        lambda self, moment: moment,
        waits_are_no_time_of_ours,
    ),
    "a turn that is never handed on": (
        "harness.ab.waits.Waits.check_rounds",
        lambda self, at, prompt: None,
        a_kept_turn_is_refused,
    ),
    "a margin without its control": (
        "harness.ab.session.control_spread",
        lambda control, pairs: 0.0,
        the_margin_is_held_to_the_control,
    ),
    "lease released early": (
        "harness.machine.lease.fcntl.flock",
        lambda descriptor, how: None,
        a_lease_is_held_to_the_end,
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_noticed(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, spoilt, check = PLANTED[fault]
    check(tmp_path)
    monkeypatch.setattr(target, spoilt)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(tmp_path)
