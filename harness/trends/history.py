"""Many bundles in the order of their time -> one series per metric, with the steps in it. Pure.

Noisy times step where ``levels.py`` finds that their level does, exact numbers and token hashes wherever they differ.
Where bundles may not be compared (other machine facts, other tokens) a series breaks: nothing is said across a break.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from harness.comparability import differences
from harness.model import Better, Evidence, OriginKind, Samples, ScopeEvidence
from harness.stats import decide, median
from harness.trends.levels import LEVEL, MIN_SEGMENT, confirmed_steps, corrected_p, night_margin
from harness.units import convert, same_dimension
from harness.verdict import Interval, MetricOutcome

MARGIN_FLOOR = 0.03


@dataclass(frozen=True, slots=True)
class BundleRef:
    """One bundle of the history."""

    label: str
    digest: str
    created: str
    commit: str
    device_key: str
    cases: int
    passed: int


@dataclass(frozen=True, slots=True)
class Point:
    """One value. ``bundle`` is the place in ``History.bundles``; ``low`` and ``high`` span its n repeats.

    ``left_out`` says why it is shown and takes no part: unfit for timing, or carried over from another bundle.
    """

    bundle: int
    value: float
    low: float
    high: float
    n: int
    token_sha256: str = ""
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Break:
    """Before point ``at`` something changed that forbids comparing across."""

    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """From point ``at`` on the level is another one. ``p`` is corrected for the places searched; ``None`` if exact."""

    at: int
    before: float
    after: float
    n_before: int
    n_after: int
    outcome: MetricOutcome
    p: float | None
    also: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """after / before; ``None`` where there is none."""
        return self.after / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Streak:
    """The last ``nights`` points all lie beyond the margin on one side of ``reference``, the level before them."""

    nights: int
    reference: float
    reference_n: int
    ratio: float
    margin: float
    outcome: MetricOutcome


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of one case on one kind of machine over time; ``points`` in the order of ``History.bundles``."""

    device_key: str
    scope: str
    node: str
    name: str
    kind: str  # "samples", "metric" or "tokens"
    unit: str
    better: Better
    points: tuple[Point, ...]
    breaks: tuple[Break, ...] = ()
    steps: tuple[Step, ...] = ()
    streak: Streak | None = None
    margin: float = 0.0

    @property
    def since_break(self) -> MetricOutcome:
        """The latest level against the first one that may be compared with it."""
        start = max((broken.at for broken in self.breaks), default=0)
        levels = [level for first, _, level in self.levels() if first >= start]
        if self.kind == "tokens" and self.points[start].token_sha256 != self.points[-1].token_sha256:
            return MetricOutcome.CHANGED
        if len(levels) < 2 or levels[0] == levels[-1]:
            return MetricOutcome.SAME
        if self.kind != "samples":
            return _moved(levels[0], levels[-1], self.better)
        return _beyond(levels[-1] / levels[0], self.margin, self.better)

    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """(first point, one past the last, median) of each stretch between breaks and steps, left-out points aside."""
        edges = sorted({0, *(b.at for b in self.breaks), *(s.at for s in self.steps), len(self.points)})
        stretches = []
        for start, end in pairwise(edges):
            values = [point.value for point in self.points[start:end] if not point.left_out]
            if values:
                stretches.append((start, end, median(values)))
        return tuple(stretches)


@dataclass(frozen=True, slots=True)
class History:
    """Every series over ``bundles``, worst first; ``not_read`` says which bundles were left out, and why."""

    bundles: tuple[BundleRef, ...]
    series: tuple[Series, ...]
    margin: float
    not_read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    device_key: str
    scope: str
    node: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Raw:
    point: Point
    unit: str
    better: Better
    facts: dict[str, str]
    commit: str


def build_history(
    evidence: Iterable[Evidence], margin: float = MARGIN_FLOOR, not_read: tuple[str, ...] = ()
) -> History:
    """The history of bundles, each counted once, oldest first. ``margin`` is the least change worth a name."""
    ordered = sorted(_once(evidence), key=lambda bundle: (bundle.created, bundle.label))
    raw: dict[_Key, list[_Raw]] = {}
    for place, bundle in enumerate(ordered):
        for scope in bundle.scopes:
            facts = {**bundle.environment_of(scope), "device_key": bundle.device_key}
            _collect(raw, place, bundle, scope, facts)
    series = tuple(_series(key, points, margin) for key, points in raw.items())
    return History(tuple(map(_reference, ordered)), tuple(sorted(series, key=_gravity)), margin, not_read)


def _once(evidence: Iterable[Evidence]) -> list[Evidence]:
    seen: dict[str, Evidence] = {}
    for bundle in evidence:
        seen.setdefault(bundle.digest or bundle.label, bundle)
    return list(seen.values())


def _reference(bundle: Evidence) -> BundleRef:
    cases = [case for scope in bundle.scopes for case in scope.cases]
    return BundleRef(
        bundle.label,
        bundle.digest,
        bundle.created,
        bundle.commit,
        bundle.device_key,
        len(cases),
        sum(case.status.green for case in cases),
    )


def _collect(
    raw: dict[_Key, list[_Raw]], place: int, bundle: Evidence, scope: ScopeEvidence, facts: dict[str, str]
) -> None:
    carried = "carried over, not measured" if scope.origin.kind is OriginKind.CARRIED else ""

    def add(node: str, name: str, kind: str, point: Point, unit: str, better: Better) -> None:
        key = _Key(bundle.device_key, scope.scope, node, name, kind)
        raw.setdefault(key, []).append(_Raw(point, unit, better, facts, bundle.commit))

    for samples in scope.samples:
        add(samples.node, samples.name, "samples", _of_samples(place, samples, carried), samples.unit, samples.better)
    for metric in scope.metrics:
        point = Point(place, metric.value, metric.value, metric.value, 1, left_out=carried)
        add(metric.node, metric.name, "metric", point, metric.unit, metric.better)
    for control in scope.tokens:
        value = control.emitted_per_round
        point = Point(place, value, value, value, len(control.prompt_sha256), control.sha256, carried)
        add(control.node, control.name, "tokens", point, "token/round", Better.HIGHER)


def _of_samples(place: int, samples: Samples, carried: str) -> Point:
    left_out = carried or (f"unfit for timing: {'; '.join(samples.unfit)}" if samples.unfit else "")
    values = samples.values
    return Point(place, median(values), min(values), max(values), len(values), samples.token_sha256, left_out)


# ---- one series -----------------------------------------------------------------------------------------------------


def _series(key: _Key, raw: list[_Raw], margin: float) -> Series:
    unit, better = raw[-1].unit, raw[-1].better
    raw = [entry for entry in raw if same_dimension(entry.unit, unit)]
    points = tuple(_in_unit(entry.point, entry.unit, unit) for entry in raw)
    series = Series(key.device_key, key.scope, key.node, key.name, key.kind, unit, better, points, margin=margin)
    if key.kind != "samples":
        steps = _exact_steps(series, raw)
        return Series(*_identity(series), points, steps=steps, margin=margin)
    breaks = tuple(_breaks(raw))
    steps = tuple(step for start, end in _stretches(breaks, len(points)) for step in _steps(series, raw, start, end))
    last = max([0, *(b.at for b in breaks), *(step.at for step in steps)])
    return Series(*_identity(series), points, breaks, steps, _streak(series, last), margin)


def _identity(series: Series) -> tuple[str, str, str, str, str, str, Better]:
    return series.device_key, series.scope, series.node, series.name, series.kind, series.unit, series.better


def _in_unit(point: Point, unit: str, to: str) -> Point:
    value, low, high = (convert(number, unit, to) for number in (point.value, point.low, point.high))
    return Point(point.bundle, value, low, high, point.n, point.token_sha256, point.left_out)


def _breaks(raw: list[_Raw]) -> Iterable[Break]:
    """Where two neighbours may not be compared, by the same contract that ``compare`` holds."""
    for at in range(1, len(raw)):
        before, after = raw[at - 1], raw[at]
        fatal = next((row for row in differences(before.facts, after.facts) if row.fatal), None)
        if fatal is not None:
            yield Break(at, f"{fatal.key}: {fatal.base} → {fatal.head} ({fatal.reason})")
        elif before.point.token_sha256 != after.point.token_sha256:
            yield Break(at, "other tokens were generated")


def _stretches(breaks: tuple[Break, ...], n: int) -> list[tuple[int, int]]:
    edges = [0, *(b.at for b in breaks), n]
    return list(pairwise(edges))


def _exact_steps(series: Series, raw: list[_Raw]) -> tuple[Step, ...]:
    """Every place where an exact number, or the tokens, differ from the bundle before."""
    found = []
    for at in range(1, len(raw)):
        before, after = raw[at - 1].point, raw[at].point
        if before.value == after.value and before.token_sha256 == after.token_sha256:
            continue
        other = before.token_sha256 != after.token_sha256
        outcome = MetricOutcome.CHANGED if other else _moved(before.value, after.value, series.better)
        found.append(Step(at, before.value, after.value, 1, 1, outcome, None, _also(raw[at - 1], raw[at])))
    return tuple(found)


def _moved(before: float, after: float, better: Better) -> MetricOutcome:
    if better is Better.NEITHER:
        return MetricOutcome.CHANGED
    return MetricOutcome.BETTER if (after > before) == (better is Better.HIGHER) else MetricOutcome.WORSE


def _steps(series: Series, raw: list[_Raw], start: int, end: int) -> Iterable[Step]:
    """Confirmed steps of noisy values between two breaks."""
    places = [at for at in range(start, end) if not series.points[at].left_out and series.points[at].value > 0]
    values = [series.points[at].value for at in places]
    edges = [0, *confirmed_steps(values, series.margin), len(values)]
    for left, edge, right in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = values[left:edge], values[edge:right]
        p = corrected_p(before, after, len(values))
        ratio = median(after) / median(before)
        outcome = _beyond(ratio, series.margin, series.better)
        also = _also(raw[places[edge - 1]], raw[places[edge]])
        yield Step(places[edge], median(before), median(after), len(before), len(after), outcome, p, also)


def _also(before: _Raw, after: _Raw) -> tuple[str, ...]:
    """What else changed between two bundles: the commit first, then facts of the machine."""
    rows = differences(before.facts, after.facts)
    commit = [f"commit {before.commit[:9]} → {after.commit[:9]}"] if before.commit != after.commit else []
    return (*commit, *(f"{row.key} {row.base[:40]} → {row.head[:40]}" for row in rows))


def _streak(series: Series, start: int) -> Streak | None:
    """How many of the last points lie out of line with those before them, all on one side."""
    values = [point.value for point in series.points[start:] if not point.left_out and point.value > 0]
    found: Streak | None = None
    for nights in range(1, len(values) - MIN_SEGMENT + 1):
        before, last = values[:-nights], values[-nights:]
        reference, margin = median(before), night_margin(before, series.margin)
        outcomes = {_beyond(value / reference, margin, series.better) for value in last}
        if len(outcomes) > 1 or MetricOutcome.SAME in outcomes:
            break
        found = Streak(nights, reference, len(before), median(last) / reference, margin, outcomes.pop())
    return found


def _beyond(ratio: float, margin: float, better: Better) -> MetricOutcome:
    return decide(Interval(ratio, ratio, LEVEL, "one value"), margin, better)


def _gravity(series: Series) -> tuple[int, str, str, str]:
    """Worse first, then what moved otherwise, then the steady; by name within."""
    outcomes = [step.outcome for step in series.steps] + ([series.streak.outcome] if series.streak else [])
    rank = 0 if MetricOutcome.WORSE in outcomes else 1 if outcomes else 2 if series.breaks else 3
    return rank, series.device_key, series.node, series.name
