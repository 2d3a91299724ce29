"""Base against head: comparability, then outcomes, then numbers, then coverage. Pure.

Only scopes that head ran are compared; those it did not run are named, not missed. A vanished case of a scope that
did run is MISSING, which is a regression.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from harness.comparability import differences, other_device
from harness.compare_numbers import compare_numbers
from harness.model import CaseResult, CaseStatus, Evidence, Origin, OriginKind, ScopeEvidence
from harness.verdict import (
    NOT_COMPARABLE,
    CaseOutcome,
    CaseRow,
    Comparison,
    Difference,
    MetricRow,
    Policy,
    Quarantine,
    ScopeRow,
)

JUDGE = 4  # raised when the same two pieces of evidence would be judged differently
RENAME_LIMIT = 200  # beyond so many missing or new cases a suggestion would be a guess
RENAME_SIMILARITY = 0.8
NOT_ASKED = "not part of this run"
_FAILING = (CaseStatus.FAILED, CaseStatus.ERROR)


def compare(
    base: Evidence | None,
    head: Evidence,
    policy: Policy,
    quarantine: Mapping[str, Quarantine] | None = None,
    today: str = "",
) -> Comparison:
    """Compare every row of every scope that head ran. ``quarantine`` is by node id, ``today`` is ``YYYY-MM-DD``."""
    held = {node: entry for node, entry in (quarantine or {}).items() if entry.expires >= today}
    found: list[Difference] = []
    compared = 0
    scope_rows: list[ScopeRow] = []
    case_rows: list[CaseRow] = []
    metric_rows: list[MetricRow] = []
    for scope in head.scopes:
        base_scope = base.scope(scope.scope) if base is not None else None
        scope_rows.append(_scope_row(base_scope, scope))
        if scope.origin.kind is OriginKind.NOT_RUN:
            continue
        facts: list[Difference] = []
        if base is not None and base_scope is not None:
            compared += 1
            facts = differences(
                base.environment_of(base_scope), head.environment_of(scope), assume_comparable=policy.assume_comparable
            )
        found += [_in_scope(row, scope.scope) for row in facts]
        elsewhere = other_device(facts)
        known = None if elsewhere else base_scope
        case_rows += compare_cases(known, scope, held, NOT_COMPARABLE if elsewhere else "new")
        metric_rows += compare_numbers(base_scope, scope, facts, policy)
    if base is not None:
        ran = {scope.scope for scope in head.scopes}
        absent = [scope for scope in base.scopes if scope.scope not in ran]
        scope_rows += [
            ScopeRow(scope.scope, len(scope.cases), None, 0, Origin(OriginKind.NOT_RUN, NOT_ASKED)) for scope in absent
        ]
    return Comparison(
        base=base.label if base else "",
        head=head.label,
        base_digest=base.digest if base else "",
        head_digest=head.digest,
        differences=tuple(_joined(found, compared)),
        scopes=tuple(scope_rows),
        cases=tuple(case_rows),
        metrics=tuple(metric_rows),
        not_claimed=head.not_claimed,
        alarms=tuple(_alarms(quarantine or {}, head, today)),
    )


def _scope_row(base: ScopeEvidence | None, head: ScopeEvidence) -> ScopeRow:
    ran = head.origin.kind is not OriginKind.NOT_RUN
    return ScopeRow(
        scope=head.scope,
        base_cases=len(base.cases) if base is not None else None,
        head_cases=sum(case.status is not CaseStatus.NOT_RUN for case in head.cases) if ran else None,
        head_passed=sum(case.status.green for case in head.cases),
        origin=head.origin,
        problem=head.problem,
        notes=head.notes,
    )


def _in_scope(row: Difference, scope: str) -> Difference:
    return Difference(row.key, row.base, row.head, row.fatal, row.reason, scope)


def _joined(rows: list[Difference], scopes: int) -> Iterable[Difference]:
    """Say a difference once where it holds for every compared scope."""
    together: dict[tuple[str, str, str], list[Difference]] = {}
    for row in rows:
        together.setdefault((row.key, row.base, row.head), []).append(row)
    for group in together.values():
        yield from [_in_scope(group[0], "")] if len(group) == scopes else group


# ---- outcomes -------------------------------------------------------------------------------------------------------


def compare_cases(
    base: ScopeEvidence | None, head: ScopeEvidence, quarantine: Mapping[str, Quarantine], alone: str = "new"
) -> list[CaseRow]:
    """One row per case of either side: head's in its order, then those that vanished.

    ``alone`` is what a case without a counterpart is: new, or on a device whose results base cannot be held against.
    """
    before = {case.node: case for case in base.cases} if base is not None else {}
    after = {case.node: case for case in head.cases}
    rows = [case_row(head.scope, before.get(node), case, quarantine.get(node), alone) for node, case in after.items()]
    gone = [case for node, case in before.items() if node not in after]
    rows += [
        CaseRow(
            head.scope, case.node, CaseOutcome.MISSING, case.status, None, f"{case.status} at base, absent from head"
        )
        for case in gone
    ]
    return _suggest_renames(rows)


def case_row(
    scope: str, base: CaseResult | None, head: CaseResult, held: Quarantine | None, alone: str = "new"
) -> CaseRow:
    """What became of one case that head knows."""
    if base is not None and base.status.green and head.status.green:  # nearly all of them, so asked first
        return CaseRow(scope, head.node, CaseOutcome.UNCHANGED, base.status, head.status)
    outcome, reason = _outcome(base.status if base else None, head, alone)
    before = base.status if base else None
    if head.status is CaseStatus.NOT_RUN and outcome is CaseOutcome.MISSING:
        return CaseRow(scope, head.node, outcome, before, None, reason)
    bad = outcome in (CaseOutcome.BROKEN, CaseOutcome.FLAKY) or (
        outcome is CaseOutcome.UNCHANGED and head.status in (*_FAILING, CaseStatus.CRASHED)
    )
    if held is not None and bad:
        why = f"{held.reason} (owner {held.owner}, until {held.expires}); now {head.status}: {head.reason}"
        return CaseRow(scope, head.node, CaseOutcome.QUARANTINED, before, head.status, why)
    return CaseRow(scope, head.node, outcome, before, head.status, reason)


def _outcome(base: CaseStatus | None, head: CaseResult, alone: str) -> tuple[CaseOutcome, str]:
    now, why = head.status, head.reason
    if now is CaseStatus.NOT_RUN:
        if why.startswith("deselected"):
            return CaseOutcome.SKIPPED, why
        return (CaseOutcome.MISSING if base is not None else CaseOutcome.BROKEN), why
    if now is CaseStatus.SKIPPED:
        return CaseOutcome.SKIPPED, why
    if now is CaseStatus.FLAKY:
        return CaseOutcome.FLAKY, why
    if base is None:
        new = now.green or now is CaseStatus.XFAILED
        return (CaseOutcome.NEW, why) if new else (CaseOutcome.BROKEN, f"{alone}, and {now}: {why}")
    if now.green:
        return (CaseOutcome.UNCHANGED, "") if base.green else (CaseOutcome.FIXED, f"was {base}")
    if now is base or (now in _FAILING and base in _FAILING):
        return CaseOutcome.UNCHANGED, f"still {now}: {why}"
    if now is CaseStatus.XFAILED and base in (*_FAILING, CaseStatus.CRASHED):
        return CaseOutcome.UNCHANGED, f"was {base}, now expected to fail: {why}"
    return CaseOutcome.BROKEN, why


def _suggest_renames(rows: list[CaseRow]) -> list[CaseRow]:
    """Say which new case looks like a vanished one. A suggestion only: the vanished one stays MISSING."""
    gone = [row for row in rows if row.outcome is CaseOutcome.MISSING]
    new = [row for row in rows if row.base is None and row.outcome in (CaseOutcome.NEW, CaseOutcome.BROKEN)]
    if not gone or not new or max(len(gone), len(new)) > RENAME_LIMIT:
        return rows
    suggestion = {}
    for row in gone:
        closest = max(new, key=lambda candidate: _similarity(row.node, candidate.node))
        if _similarity(row.node, closest.node) >= RENAME_SIMILARITY:
            suggestion[row.node] = f"{row.reason}; renamed to {closest.node}?"
    return [
        CaseRow(row.scope, row.node, row.outcome, row.base, row.head, suggestion[row.node])
        if row.outcome is CaseOutcome.MISSING and row.node in suggestion
        else row
        for row in rows
    ]


def _similarity(one: str, other: str) -> float:
    """How alike two ids are; 0 where they differ in numbers only: ``test_x[8]`` is not ``test_x[16]`` renamed."""
    if re.sub(r"\d+", "", one) == re.sub(r"\d+", "", other):
        return 0.0
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def _alarms(quarantine: Mapping[str, Quarantine], head: Evidence, today: str) -> Iterable[str]:
    status = {case.node: case.status for scope in head.scopes for case in scope.cases if case.node in quarantine}
    for node, entry in quarantine.items():
        if entry.expires < today:
            yield f"the quarantine of {node} ended on {entry.expires} (owner {entry.owner}): mend the case or renew it"
        elif node in status and status[node].green:
            yield f"{node} is in quarantine (owner {entry.owner}) and passes: lift it"
