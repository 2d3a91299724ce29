"""Metrics, token controls and samples of one scope, base against head. Pure.

Exact numbers and token hashes are compared wherever the device key agrees. Times are compared only where the whole
contract holds: same machine facts, same tokens, natural stop, unprofiled. Otherwise INCOMPARABLE and the first reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.comparability import other_device, said, samples_obstacle
from harness.model import Assume, Better, CaseResult, Metric, Samples, ScopeEvidence, TokenControl
from harness.pairs import control_log_ratios, control_spread, judge_pairs, steadiness
from harness.sequential import least_spent, share
from harness.stats import (
    decide,
    least_p,
    median,
    needs_n,
    needs_n_each,
    ratio_interval,
    repeats_to_decide,
)
from harness.units import convert, same_dimension
from harness.verdict import Difference, MetricOutcome, MetricRow, Policy

CONVERSION_SLACK = 1e-12  # a unit conversion may round; equal units are compared bit by bit


def compare_numbers(
    base: ScopeEvidence | None, head: ScopeEvidence, facts: Sequence[Difference], policy: Policy
) -> list[MetricRow]:
    """One row for every metric, token control and sample set of either side."""
    elsewhere = other_device(list(facts))
    obstacle = said(elsewhere) if elsewhere else ""
    timing_obstacle = next((said(row) for row in facts if row.fatal), "")
    cases = {case.node: case for case in head.cases}
    rows = _metrics(base, head, obstacle, cases)
    rows += _tokens(base, head, obstacle, cases)
    rows += _samples(base, head, timing_obstacle, cases, policy)
    return rows


def _absent(scope: str, node: str, name: str, kind: str, cases: Mapping[str, CaseResult]) -> MetricRow:
    """A number that base has and head lacks: lost with its case, or dropped by a case that still passes."""
    case = cases.get(node)
    if case is not None and not case.status.green:
        return MetricRow(scope, node, name, kind, MetricOutcome.INCOMPARABLE, reason=f"its case is {case.status}")
    reason = "its case vanished" if case is None else "its case passes and no longer states it"
    return MetricRow(scope, node, name, kind, MetricOutcome.MISSING, reason=reason)


# ---- single numbers -------------------------------------------------------------------------------------------------


def _metrics(
    base: ScopeEvidence | None, head: ScopeEvidence, obstacle: str, cases: Mapping[str, CaseResult]
) -> list[MetricRow]:
    before = {(metric.node, metric.name): metric for metric in base.metrics} if base is not None else {}
    after = {(metric.node, metric.name): metric for metric in head.metrics}
    rows = [metric_row(head.scope, before.get(key), metric, obstacle) for key, metric in after.items()]
    if not obstacle:
        rows += [_absent(head.scope, *key, "metric", cases) for key in before if key not in after]
    return rows


def metric_row(scope: str, base: Metric | None, head: Metric, obstacle: str) -> MetricRow:
    """Compare one number. An exact one is the same or it is not; a single noisy one is shown and never judged."""
    outcome, reason, before = MetricOutcome.NEW, "", None
    if base is not None:
        before = base.value if base.unit == head.unit or not same_dimension(base.unit, head.unit) else None
        if before is None:
            before = convert(base.value, base.unit, head.unit)
        outcome, reason = _metric_outcome(base, head, before, obstacle)
    return MetricRow(
        scope,
        head.node,
        head.name,
        "metric",
        outcome,
        head.unit,
        head.better,
        before,
        head.value,
        int(base is not None),
        1,
        ratio=head.value / before if before else None,
        reason=reason,
    )


def _metric_outcome(base: Metric, head: Metric, before: float, obstacle: str) -> tuple[MetricOutcome, str]:
    if obstacle:
        return MetricOutcome.INCOMPARABLE, obstacle
    if not same_dimension(base.unit, head.unit):
        return MetricOutcome.CHANGED, f"its unit was {base.unit!r} and is {head.unit!r}"
    if before == head.value or (
        base.unit != head.unit and math.isclose(before, head.value, rel_tol=CONVERSION_SLACK, abs_tol=0.0)
    ):
        return MetricOutcome.SAME, ""
    if Assume.EXACT not in (base.assume, head.assume):
        return MetricOutcome.INCOMPARABLE, "one noisy value a side decides nothing: record repeats with samples()"
    if head.better is Better.NEITHER:
        return MetricOutcome.CHANGED, "an exact number moved"
    better = (head.value > before) == (head.better is Better.HIGHER)
    return (MetricOutcome.BETTER if better else MetricOutcome.WORSE), "an exact number moved"


# ---- tokens ---------------------------------------------------------------------------------------------------------


def _tokens(
    base: ScopeEvidence | None, head: ScopeEvidence, obstacle: str, cases: Mapping[str, CaseResult]
) -> list[MetricRow]:
    before = {(control.node, control.name): control for control in base.tokens} if base is not None else {}
    after = {(control.node, control.name): control for control in head.tokens}
    rows = [token_row(head.scope, before.get(key), control, obstacle) for key, control in after.items()]
    if not obstacle:
        rows += [_absent(head.scope, *key, "tokens", cases) for key in before if key not in after]
    return rows


def token_row(scope: str, base: TokenControl | None, head: TokenControl, obstacle: str) -> MetricRow:
    """Compare what was generated: hashes first, then why it ended, then in how many rounds it came."""
    outcome, reason = MetricOutcome.NEW, ""
    if base is not None:
        outcome, reason = _token_outcome(base, head, obstacle)
    return MetricRow(
        scope,
        head.node,
        head.name,
        "tokens",
        outcome,
        "token/round",
        Better.HIGHER,
        base.emitted_per_round if base is not None else None,
        head.emitted_per_round,
        len(base.prompt_sha256) if base is not None else 0,
        len(head.prompt_sha256),
        base.sha256 if base is not None else "",
        head.sha256,
        reason=reason,
    )


def _token_outcome(base: TokenControl, head: TokenControl, obstacle: str) -> tuple[MetricOutcome, str]:
    if obstacle:
        return MetricOutcome.INCOMPARABLE, obstacle
    if len(base.prompt_sha256) != len(head.prompt_sha256):
        return MetricOutcome.CHANGED, f"{len(base.prompt_sha256)} prompts at base, {len(head.prompt_sha256)} at head"
    moved = [i for i, pair in enumerate(zip(base.prompt_sha256, head.prompt_sha256, strict=True)) if pair[0] != pair[1]]
    if moved or base.sha256 != head.sha256:
        where = f"prompt {moved[0] + 1} is the first of {len(moved)} that differ" if moved else "the whole hash differs"
        return MetricOutcome.CHANGED, f"other tokens: {where}; {base.tokens} tokens at base, {head.tokens} at head"
    if base.finish != head.finish:
        return MetricOutcome.CHANGED, f"same tokens, another end: base {base.finish}, head {head.finish}"
    if base.emitted_per_round != head.emitted_per_round:
        better = head.emitted_per_round > base.emitted_per_round
        return (MetricOutcome.BETTER if better else MetricOutcome.WORSE), "same tokens in another number of rounds"
    if base.acceptance_histogram != head.acceptance_histogram:
        return MetricOutcome.CHANGED, "same tokens and rounds, another acceptance histogram"
    return MetricOutcome.SAME, ""


# ---- repeats --------------------------------------------------------------------------------------------------------


def _samples(
    base: ScopeEvidence | None,
    head: ScopeEvidence,
    obstacle: str,
    cases: Mapping[str, CaseResult],
    policy: Policy,
) -> list[MetricRow]:
    """Every sample set. Those that can be judged are judged together: their error is shared out (Bonferroni)."""
    before = {(samples.node, samples.name): samples for samples in base.samples} if base is not None else {}
    stops = [_natural_stops(base), _natural_stops(head)]
    after = {(samples.node, samples.name): samples for samples in head.samples}
    against = {}
    for key, samples in after.items():
        old = before.get(key)
        control = (samples.node, samples.control)
        natural = (stops[0].get(control, True), stops[1].get(control, True))
        against[key] = "" if old is None else _samples_obstacle(old, samples, natural, obstacle)
    family = sum(not reason for key, reason in against.items() if key in before)
    each = replace(policy, level=1 - share(1 - policy.level, max(1, family)))
    rows = [samples_row(head.scope, before.get(key), samples, against[key], each) for key, samples in after.items()]
    together = (f"{family} quantities are judged together, each at {100 * each.level:.4g} %",) if family > 1 else ()
    rows = [replace(row, notes=(*row.notes, *together)) if row.margin_source else row for row in rows]
    doubts = [f"{side}: {doubt}" for side, scope in (("head", head), ("base", base)) if scope for doubt in scope.doubts]
    rows = [_doubted(row, doubts[0], after[row.node, row.name]) for row in rows] if doubts else rows
    rows += [_absent(head.scope, *key, "samples", cases) for key in before if key not in after]
    return rows


def _doubted(row: MetricRow, doubt: str, head: Samples) -> MetricRow:
    """A time that differs beside a busy machine decides nothing. Bytes do not feel it; in turns both sides met it."""
    decided = row.outcome in (MetricOutcome.WORSE, MetricOutcome.BETTER)
    if not decided or head.pairing is not None or same_dimension(row.unit, "byte"):
        return row
    reason = f"{row.outcome} by the figures, but {doubt}: measure again on a quiet machine"
    return replace(row, outcome=MetricOutcome.UNDECIDED, reason=reason)


def _natural_stops(scope: ScopeEvidence | None) -> dict[tuple[str, str], bool]:
    return {(t.node, t.name): t.natural_stop for t in scope.tokens} if scope is not None else {}


def _samples_obstacle(base: Samples, head: Samples, natural_stop: tuple[bool, bool], obstacle: str) -> str:
    """Why two sets may not be judged; empty where they may. A changed kind of unit is an outcome, no obstacle."""
    if not same_dimension(base.unit, head.unit):
        return "another unit"
    reason = obstacle or samples_obstacle(base, head, natural_stop)
    if not reason and min(*base.values, *head.values) <= 0:
        reason = "a value is not positive: there is no ratio"
    return reason


def samples_row(scope: str, base: Samples | None, head: Samples, obstacle: str, policy: Policy) -> MetricRow:
    """Compare two sets of repeats by the interval of the ratio of their medians against a margin.

    ``obstacle`` is why they may not be judged; ``policy.level`` what this one row must reach.
    """
    row = MetricRow(
        scope,
        head.node,
        head.name,
        "samples",
        MetricOutcome.NEW,
        head.unit,
        head.better,
        None,
        median(head.values),
        0,
        len(head.values),
        unfit=head.unfit,
    )
    if base is None:
        return row
    if not same_dimension(base.unit, head.unit):
        reason = f"its unit was {base.unit!r} and is {head.unit!r}"
        return replace(row, outcome=MetricOutcome.CHANGED, base_n=len(base.values), reason=reason)
    before = [convert(value, base.unit, head.unit) for value in base.values]
    row = replace(row, base=median(before), base_n=len(before))
    if obstacle:
        return replace(row, outcome=MetricOutcome.INCOMPARABLE, reason=obstacle)
    if _one_session(base, head):
        return _judged_pairs(row, replace(base, values=tuple(before)), head)
    return _judged(row, before, head, *_margin(base, policy), policy.level)


def _one_session(base: Samples, head: Samples) -> bool:
    """Whether the repeats are the two sides of one A/B session, pair by pair."""
    one, other = base.pairing, head.pairing
    return one is not None and one == other and len(base.values) == len(head.values)


def _judged_pairs(row: MetricRow, base: Samples, head: Samples) -> MetricRow:
    """Judge by pairs, against the margin and with the error that the session fixed for this quantity."""
    pairing = head.pairing
    assert pairing is not None
    judged = judge_pairs(base, head, pairing.alpha, pairing.most_pairs)
    control = control_log_ratios(base, head)
    said = "A/A: no control pair was run"
    if control:
        spread = f"{100 * control_spread(control, judged.pairs):.2f} % (standard error)"
        said = f"A/A: {judged.pairs} pairs of one build would be off by {spread}, by {len(control)} control pairs"
    order = [f"interleaved by {pairing.order}"] if pairing.order else []
    notes = (*row.notes, *order, *judged.notes, said, *steadiness(base, head))
    row = replace(row, ratio=judged.ratio, margin=pairing.margin, margin_source=pairing.margin_source, notes=notes)
    if judged.interval is None:
        level, least = f"{100 * (1 - pairing.alpha):.4g} %", f"{least_spent(judged.pairs):.2g}"
        reason = f"{judged.pairs} pairs give no interval at {level}: the least possible p is {least}"
        return replace(row, outcome=MetricOutcome.UNDECIDED, reason=reason)
    outcome = decide(judged.interval, pairing.margin, head.better)
    reason = ""
    if outcome is MetricOutcome.UNDECIDED:
        about = repeats_to_decide(judged.interval, pairing.margin, judged.pairs)
        ask = f"needs about {about} pairs" if about else "the ratio sits on the margin: no number of pairs decides"
        reason = f"{ask}; the interval reaches across the margin"
    return replace(row, outcome=outcome, interval=judged.interval, reason=reason)


def _judged(
    row: MetricRow, before: Sequence[float], head: Samples, margin: float, source: str, level: float
) -> MetricRow:
    ratio = median(head.values) / median(before)
    interval = ratio_interval(before, head.values, level)
    notes = (*row.notes, f"least possible p with {len(before)} and {len(head.values)} repeats: {_p(before, head)}")
    row = replace(row, ratio=ratio, margin=margin, margin_source=source, notes=notes)
    if interval is None:
        enough = needs_n(len(before), level)
        ask = f"n = {enough} at head" if enough else f"n = {needs_n_each(level)} on each side"
        reason = (
            f"needs {ask}: {len(before)} against {len(head.values)} repeats cannot reach the {100 * level:.4g}% level"
        )
        return replace(row, outcome=MetricOutcome.UNDECIDED, reason=reason)
    outcome = decide(interval, margin, head.better)
    reason = ""
    if outcome is MetricOutcome.UNDECIDED:
        about = repeats_to_decide(interval, margin, len(head.values))
        ask = f"needs about n = {about}" if about else "the ratio sits on the margin: no number of repeats decides"
        reason = f"{ask}; the interval reaches across the margin"
    return replace(row, outcome=outcome, interval=interval, reason=reason)


def _p(before: Sequence[float], head: Samples) -> str:
    return f"{least_p(len(before), len(head.values)):.2g}"


def _margin(base: Samples, policy: Policy) -> tuple[float, str]:
    """The largest of what is worth calling a change and what two runs of one commit differed by."""
    spread = base.aa_spread or 0.0
    if spread > policy.margin_floor:
        return spread, "A/A: what two accepted runs of one commit differed by"
    return policy.margin_floor, "floor of the policy"
