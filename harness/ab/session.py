"""The session: base and head in turn, ABBA, until the intervals decide or the budget is spent. No process, no file.

``run_session`` is given a function that makes one repeat and one that names outside witnesses; it decides whom to run
next, whether both did the same work, and when it has seen enough. So it is tried with neither a process nor a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.ab.figures import QUANTITIES, ROUND, samples_of
from harness.ab.repeat import Repeat, RepeatError
from harness.ab.same_work import SameWork, other_work
from harness.model import MetricOutcome, Pairing, Samples
from harness.pairs import control_spread, judge_pairs
from harness.sequential import MOST_PAIRS, Plan, plan, planned_looks, share
from harness.stats import decide

BASE, HEAD = "base", "head"
ORDER = (BASE, HEAD, HEAD, BASE)
EXCUSED_SHARE = 0.25
"""Of the blocks planned: more than this are never left out, or a session could wait for ever for a quiet hour."""

MakeRepeat = Callable[[str, tuple[str, ...], int], dict[str, Repeat]]
Excuses = Callable[[float, float], Sequence[str]]
"""From when to when (CLOCK_MONOTONIC): what an outside witness holds against what was measured meanwhile."""


@dataclass(frozen=True)
class Ask:
    """What a session is to decide. ``groups`` are the arms that share a process; all arms are judged together.

    ``decide_on`` are the quantities that must be decided before it stops early; every quantity is judged in the end.
    ``history`` is the A/A spread that earlier sessions of this machine saw, by arm.
    """

    session: str
    groups: tuple[tuple[str, ...], ...]
    alpha: float = 0.05
    floor: float = 0.01
    most_pairs: int = MOST_PAIRS
    budget_s: float = float("inf")
    history: Mapping[str, float] = field(default_factory=dict)
    decide_on: tuple[str, ...] = (ROUND,)

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm, in order."""
        return tuple(arm for group in self.groups for arm in group)

    @property
    def each_alpha(self) -> float:
        """What each judged quantity may err, so that all together stay within ``alpha``."""
        return share(self.alpha, len(self.arms) * len(QUANTITIES))

    def plan(self) -> Plan:
        """The looks of each quantity."""
        return plan(planned_looks(self.most_pairs), self.each_alpha)


@dataclass(frozen=True, slots=True)
class Excused:
    """A block that was measured again because of what a witness said; it is kept in the evidence."""

    block: int
    arms: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass
class Session:
    """What was measured: counted repeats by side and arm (repeat i of both sides is a pair), and how it ended.

    ``problem`` is why it ended before its time; ``side`` whose fault that was, where it was one side's.
    """

    ask: Ask
    repeats: dict[str, dict[str, list[Repeat]]]
    excused: list[Excused] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    ended: str = ""
    problem: str = ""
    side: str = ""
    crashed: bool = False
    difference: SameWork | None = None

    @property
    def pairs(self) -> int:
        """Complete pairs of every arm."""
        return min(len(self.repeats[side][arm]) for side in (BASE, HEAD) for arm in self.ask.arms)


def run_session(
    ask: Ask,
    make: MakeRepeat,
    clock: Callable[[], float],
    excuses: Excuses = lambda start, end: (),
    tell: Callable[[Session], None] = lambda session: None,
) -> Session:
    """Measure. A repeat that fails or other tokens end it; what was measured until then stays."""
    session = Session(ask, {side: {arm: [] for arm in ask.arms} for side in (BASE, HEAD)})
    started = clock()
    try:
        _warm_up(session, make)
        while not session.difference and not session.ended:
            for group in ask.groups:
                _block(session, make, group, excuses)
            tell(session)
            _look(session, clock() - started)
    except RepeatError as error:
        session.ended, session.problem = "a repeat failed", str(error) + (f"\n  -> {error.hint}" if error.hint else "")
        session.crashed = error.crashed
        session.side = next((side for side in (BASE, HEAD) if f" of {side}" in str(error).split("\n")[0]), "")
    return session


def _warm_up(session: Session, make: MakeRepeat) -> None:
    """One uncounted repeat of each side: files are in memory, and other work is noticed before anything is timed."""
    for group in session.ask.groups:
        made = {side: make(side, group, 0) for side in (BASE, HEAD)}
        _check(session, group, made[BASE], made[HEAD], "warm-up of base against warm-up of head")


def _block(session: Session, make: MakeRepeat, group: tuple[str, ...], excuses: Excuses) -> None:
    """Base, head, head, base: two pairs. Left out and measured again where a witness excuses it, up to the cap."""
    if session.difference:
        return
    limit = int(EXCUSED_SHARE * session.ask.most_pairs / 2)
    made: list[tuple[str, dict[str, Repeat]]] = []
    number = len(session.repeats[BASE][group[0]]) + 2 * len(session.excused) + 1
    for place, side in enumerate(ORDER):
        repeats = make(side, group, number + place // 2)
        for arm in group:
            first = made[0][1][arm] if made else repeats[arm]
            _check(session, (arm,), {arm: first}, repeats, f"base against repeat {number + place // 2} of {side}")
        if session.difference:
            return
        made.append((side, repeats))
    reasons = tuple(excuses(made[0][1][group[0]].started, made[-1][1][group[0]].ended))
    if reasons and len(session.excused) < limit:
        session.excused.append(Excused(number, group, reasons))
        return
    if reasons:
        session.doubts += [f"kept, since {limit} blocks were left out already: {reason}" for reason in reasons]
    for side, repeats in made:
        for arm in group:
            session.repeats[side][arm].append(repeats[arm])


def _check(
    session: Session, arms: Sequence[str], one: Mapping[str, Repeat], other: Mapping[str, Repeat], what: str
) -> None:
    """Times may stand side by side only where the work was the same and nothing watched it."""
    for arm in arms:
        found = other_work(one[arm], other[arm], what)
        if found is not None:
            session.difference, session.ended = found, "the work is not the same"
            return


def _look(session: Session, elapsed: float) -> None:
    """Decide whether to go on."""
    if session.difference:
        return
    ask, pairs = session.ask, session.pairs
    if pairs >= ask.most_pairs:
        session.ended = f"all {ask.most_pairs} pairs of the plan are measured"
    elif ask.plan().at(pairs) is not None and all(
        outcome(session, arm, quantity) is not MetricOutcome.UNDECIDED for arm in ask.arms for quantity in ask.decide_on
    ):
        session.ended = f"decided after {pairs} of {ask.most_pairs} pairs"
    elif elapsed > ask.budget_s:
        session.ended = f"the budget of {ask.budget_s:g} s is spent after {pairs} of {ask.most_pairs} pairs"


def outcome(session: Session, arm: str, quantity: str) -> MetricOutcome:
    """What one quantity says at the last look its pairs reach."""
    base, head = (samples(session, side, arm, quantity) for side in (BASE, HEAD))
    assert head.pairing is not None
    interval = judge_pairs(base, head, session.ask.each_alpha, session.ask.most_pairs).interval
    return MetricOutcome.UNDECIDED if interval is None else decide(interval, head.pairing.margin, head.better)


def samples(session: Session, side: str, arm: str, quantity: str) -> Samples:
    """One quantity of one side, over its complete pairs."""
    pairs = session.pairs
    bare = {name: samples_of(session.repeats[name][arm][:pairs], quantity) for name in (BASE, HEAD)}
    ask = session.ask
    margin, source = _margin(ask, arm, control_spread(bare[BASE], bare[HEAD]))
    return replace(bare[side], pairing=Pairing(ask.session, ask.each_alpha, ask.most_pairs, margin, source))


def _margin(ask: Ask, arm: str, spread: float) -> tuple[float, str]:
    """The largest of what is worth calling a change, this session's A/A control, and what earlier controls saw."""
    known = [
        (ask.floor, "floor"),
        (spread, "A/A: what neighbours of one build differed by in this session"),
        (ask.history.get(arm, 0.0), "history: what A/A controls of earlier sessions on this machine differed by"),
    ]
    return max(known, key=lambda entry: entry[0])
