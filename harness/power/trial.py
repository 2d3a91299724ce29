"""One trial: a session of ours with a delay planted in head, and as many processes one side after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from harness.ab.figures import FIRST_TOKEN, ROUND
from harness.ab.repeat import Repeat
from harness.ab.session import BASE, HEAD, Ask, Session, outcome, run_session, samples
from harness.errors import EvidenceError, HarnessError
from harness.pairs import judge_pairs, log_ratios
from harness.power.rivals import mann_whitney, mann_whitney_p, mean_threshold
from harness.power.study import Result
from harness.power.workers import Names, Workers
from harness.sequential import MOST_PAIRS

_PLANTED = "planted delay"


class OutOfTime(HarnessError):
    """The study's time ended inside this trial, which therefore does not count."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is run, in how many pairs at most, and when to give up: after ``deadline`` on ``clock``, or on ``stop``."""

    arm: str
    most_pairs: int = MOST_PAIRS
    deadline: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)


def run_trial(setup: Setup, lane: Workers, delay: int, index: int, cores: tuple[int, ...]) -> Result:
    """Measure and judge. ``OutOfTime`` at the deadline, ``EvidenceError`` when a worker fails: nothing is guessed."""
    started = setup.clock()

    def make(sides: Names, arms: Names, labels: Names) -> list[dict[str, Repeat]]:
        if setup.stop.is_set() or setup.clock() > setup.deadline:
            raise OutOfTime("the time of the study is over")
        made = lane.repeats(sides, arms, labels, [delay if side == HEAD else 0 for side in sides])
        return [{arm: _without_plant(repeat) for arm, repeat in one.items()} for one in made]

    def alone(side: str, number: int) -> float:
        return make((side,), (setup.arm,), (f"{number:03d}",))[0][setup.arm].round_ms

    ask = Ask(f"power-{delay}-{index}", ((setup.arm,),), most_pairs=setup.most_pairs)
    session = run_session(ask, make, setup.clock)
    if session.problem or session.difference:
        raise EvidenceError(f"trial {index} at {delay} %: {session.problem or session.difference}")
    in_a_row = {side: [alone(side, number) for number in range(1, session.pairs + 1)] for side in (BASE, HEAD)}
    return _result(session, setup.arm, in_a_row, delay, index, setup.clock() - started, cores)


def _without_plant(repeat: Repeat) -> Repeat:
    """A worker says that it was slowed down, which is what this study asked for; anything else still counts."""
    return replace(repeat, unfit=tuple(reason for reason in repeat.unfit if not reason.startswith(_PLANTED)))


def _result(
    session: Session,
    arm: str,
    in_a_row: Mapping[str, list[float]],
    delay: int,
    index: int,
    seconds: float,
    cores: tuple[int, ...],
) -> Result:
    base, head = (samples(session, side, arm, ROUND) for side in (BASE, HEAD))
    assert head.pairing is not None
    judged = judge_pairs(base, head, session.ask.each_alpha, session.ask.most_pairs)
    interval = judged.interval
    return Result(
        delay=delay,
        index=index,
        ours=outcome(session, arm, ROUND).value,
        ratio=judged.ratio,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        margin=head.pairing.margin,
        pairs=session.pairs,
        first_token=outcome(session, arm, FIRST_TOKEN).value,
        mann_whitney=mann_whitney(in_a_row[BASE], in_a_row[HEAD]),
        mann_whitney_p=mann_whitney_p(in_a_row[BASE], in_a_row[HEAD]),
        mean_threshold=mean_threshold(in_a_row[BASE], in_a_row[HEAD]),
        log_ratios=tuple(round(value, 6) for value in log_ratios(base, head)),
        control=tuple(round(value, 6) for value in head.pairing.control or ()),
        paired_base=tuple(round(value, 5) for value in base.values),
        paired_head=tuple(round(value, 5) for value in head.values),
        base=tuple(round(value, 5) for value in in_a_row[BASE]),
        head=tuple(round(value, 5) for value in in_a_row[HEAD]),
        seconds=round(seconds, 2),
        cores=cores,
    )
