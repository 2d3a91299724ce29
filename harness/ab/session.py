"""The session: pairs of base and head until the intervals decide or the budget is spent. No process, no file.

``run_session`` is given a function that makes repeats and one that names outside witnesses; it decides whom to run
next, whether both did the same work, and when it has seen enough. So it is tried with neither a process nor a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.ab.errors import RepeatError
from harness.ab.figures import QUANTITIES, ROUND, samples_of
from harness.ab.repeat import Repeat
from harness.ab.same_work import SameWork, other_work
from harness.model import Pairing, Samples
from harness.pairs import control_log_ratios, control_spread, judge_pairs, later_over_earlier
from harness.sequential import MOST_PAIRS, Plan, plan, planned_looks, share
from harness.stats import decide
from harness.verdict import MetricOutcome

BASE, HEAD = "base", "head"
TURNS, WHOLE = "rounds: base and head take turns", "processes: base, head, head, base"
"""How the sides are interleaved: alive together and taking turns round by round, or one whole process after another."""

BLOCK: Mapping[str, tuple[tuple[str, ...], ...]] = {
    TURNS: ((BASE, HEAD), (HEAD, BASE)),
    WHOLE: ((BASE,), (HEAD,), (HEAD,), (BASE,)),
}
"""Two pairs: which processes are alive together, the first of them begins; what comes first alternates."""

CONTROL_EVERY = 4
"""Pairs to a control pair of one build that takes turns with itself, of base and of head alternately."""

EXCUSED_SHARE = 0.25
"""Of the blocks planned: more than this are never left out, or a session could wait for ever for a quiet hour."""

MakeRepeats = Callable[[tuple[str, ...], tuple[str, ...], tuple[str, ...]], list[dict[str, Repeat]]]
"""Sides that run together, the arms they run, and a label for each: what each measured, by arm."""

Excuses = Callable[[float, float], Sequence[str]]
"""From when to when (CLOCK_MONOTONIC): what an outside witness holds against what was measured meanwhile."""


@dataclass(frozen=True)
class Ask:
    """What a session is to decide. ``groups`` are the arms that share a process; all arms are judged together.

    ``decide_on`` are the quantities that must be decided before it stops early; every quantity is judged in the end.
    ``history`` is the A/A spread that earlier sessions of this machine saw, by arm. ``order`` is ``TURNS`` or
    ``WHOLE``, ``why`` the reason where it had to be the latter.
    """

    session: str
    groups: tuple[tuple[str, ...], ...]
    alpha: float = 0.05
    floor: float = 0.01
    most_pairs: int = MOST_PAIRS
    budget_s: float = float("inf")
    history: Mapping[str, float] = field(default_factory=dict)
    decide_on: tuple[str, ...] = (ROUND,)
    order: str = TURNS
    why: str = ""

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


@dataclass(frozen=True, slots=True)
class Control:
    """One control pair of one arm: two repeats of ``side`` that took turns."""

    side: str
    earlier: Repeat
    later: Repeat

    def log_ratio(self, quantity: str) -> float:
        """Log of the later over the earlier."""
        return later_over_earlier(samples_of([self.earlier], quantity), samples_of([self.later], quantity))


@dataclass
class Session:
    """What was measured: counted repeats by side and arm (repeat i of both sides is a pair), and how it ended.

    ``controls`` are the pairs of one build, by arm, each with the side it is of: the one that began comes first.
    ``problem`` is why it ended before its time; ``side`` whose fault that was, where it was one side's.
    """

    ask: Ask
    repeats: dict[str, dict[str, list[Repeat]]]
    controls: dict[str, list[Control]] = field(default_factory=dict)
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
    make: MakeRepeats,
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
                _control(session, make, group)
            tell(session)
            _look(session, clock() - started)
    except RepeatError as error:
        session.ended, session.problem = "a repeat failed", str(error) + (f"\n  -> {error.hint}" if error.hint else "")
        session.crashed = error.crashed
        session.side = next((side for side in (BASE, HEAD) if f" of {side}" in str(error).split("\n")[0]), "")
    return session


def _warm_up(session: Session, make: MakeRepeats) -> None:
    """One uncounted repeat of each side: files are in memory, and other work is noticed before anything is timed."""
    for group in session.ask.groups:
        made: dict[str, dict[str, Repeat]] = {}
        for sides in BLOCK[session.ask.order][: 2 // len(BLOCK[session.ask.order][0])]:
            made |= zip(sides, make(sides, group, ("000",) * len(sides)), strict=True)
        _check(session, group, made[BASE], made[HEAD], "warm-up of base against warm-up of head")


def _block(session: Session, make: MakeRepeats, group: tuple[str, ...], excuses: Excuses) -> None:
    """Two pairs. Whole processes are left out and measured again where a witness excuses it, up to the cap."""
    if session.difference:
        return
    limit = int(EXCUSED_SHARE * session.ask.most_pairs / 2)
    made: list[tuple[str, dict[str, Repeat]]] = []
    number = len(session.repeats[BASE][group[0]]) + 2 * len(session.excused) + 1
    for sides in BLOCK[session.ask.order]:
        label = f"{number + len(made) // 2:03d}"
        for side, repeats in zip(sides, make(sides, group, (label,) * len(sides)), strict=True):
            first = made[0][1] if made else repeats
            _check(session, group, first, repeats, f"base against repeat {int(label)} of {side}")
            made.append((side, repeats))
        if session.difference:
            return
    reasons = tuple(excuses(made[0][1][group[0]].started, made[-1][1][group[0]].ended))
    if reasons and len(session.excused) < limit:
        session.excused.append(Excused(number, group, reasons))
        return
    if reasons:
        session.doubts += [f"kept, since {limit} blocks were left out already: {reason}" for reason in reasons]
    for side, repeats in made:
        for arm in group:
            session.repeats[side][arm].append(repeats[arm])


def _control(session: Session, make: MakeRepeats, group: tuple[str, ...]) -> None:
    """A control pair where one is due; whole processes have theirs in their order."""
    done, pairs = len(session.controls.get(group[0], [])), len(session.repeats[BASE][group[0]])
    if session.difference or session.ask.order != TURNS or pairs < CONTROL_EVERY * (done + 1):
        return
    side = (BASE, HEAD)[done % 2]
    earlier, later = make((side, side), group, tuple(f"control{done + 1:02d}{which}" for which in "ab"))
    _check(session, group, earlier, later, f"control pair {done + 1}, both of {side}")
    for arm in group:
        session.controls.setdefault(arm, []).append(Control(side, earlier[arm], later[arm]))


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
    ask, pairs = session.ask, session.pairs
    bare = {name: samples_of(session.repeats[name][arm][:pairs], quantity) for name in (BASE, HEAD)}
    control = tuple(pair.log_ratio(quantity) for pair in session.controls.get(arm, [])) if ask.order == TURNS else None
    spread = control_spread(control_log_ratios(bare[BASE], bare[HEAD]) if control is None else control, pairs)
    margin, source = _margin(ask, arm, spread)
    order = f"{ask.order} ({ask.why})" if ask.why else ask.order
    pairing = Pairing(ask.session, ask.each_alpha, ask.most_pairs, margin, source, order, control)
    return replace(bare[side], pairing=pairing)


def _margin(ask: Ask, arm: str, spread: float) -> tuple[float, str]:
    """The largest of what is worth calling a change, this session's A/A control, and what earlier controls saw."""
    known = [
        (ask.floor, "floor"),
        (spread, "A/A: what as many pairs of one build would be off by, by this session's controls"),
        (ask.history.get(arm, 0.0), "history: what the controls of earlier sessions on this machine amounted to"),
    ]
    return max(known, key=lambda entry: entry[0])
