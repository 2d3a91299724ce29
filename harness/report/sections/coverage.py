"""Coverage: how many cases each scope has on either side, how they ended, and why some did not count."""

from __future__ import annotations

from collections import Counter

from harness.model import CaseStatus, Evidence, OriginKind, ScopeEvidence
from harness.report.document import Block, Cell, Line, Section, Table, Tone
from harness.report.sections import rows as shared
from harness.report.sections.rows import Footnotes
from harness.report.words import count, listed, number, origin_words, seconds, status_word, visible
from harness.verdict import CaseOutcome, Comparison, ScopeRow

_FAILING = (CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.CRASHED)


def section(comparison: Comparison, head: Evidence, footnotes: Footnotes) -> Section:
    """One row per scope, then what fails as it did before, the skips with their reasons, the groups of cases."""
    entries = [(row, head.scope(row.scope)) for row in comparison.scopes]
    blocks: list[Block] = [_scopes_table(entries, footnotes)]
    still = [row for row in comparison.cases if row.outcome is CaseOutcome.UNCHANGED and row.head in _FAILING]
    if still:
        blocks.append(
            shared.table(
                "still-failing",
                "Failing as in the base: no change, and no pass",
                ("Scope", "Case", "Head", "Why"),
                still,
                lambda row: (
                    shared.text(row.scope),
                    shared.node(row.node),
                    shared.text(status_word(row.head)),
                    shared.text(row.reason),
                ),
                row_header=1,
            )
        )
    reasons = _reasons(head)
    if reasons:
        blocks.append(
            shared.table(
                "not-green",
                "Cases that neither passed nor failed, by reason",
                ("Scope", "Ended as", "Reason", "Cases, n"),
                reasons,
                lambda entry: (
                    shared.text(entry[0]),
                    shared.text(entry[1]),
                    shared.text(entry[2]),
                    shared.whole(entry[3]),
                ),
                row_header=2,
            )
        )
    groups = _groups(head)
    if groups:
        blocks.append(
            shared.table(
                "groups",
                "Cases by group",
                ("Scope", "Group", "Cases, n", "Passed, n"),
                groups,
                lambda entry: (
                    shared.text(entry[0]),
                    shared.text(entry[1]),
                    shared.whole(entry[2]),
                    shared.whole(entry[3]),
                ),
                row_header=1,
                folded=True,
            )
        )
    return Section(
        "coverage", "Coverage", _lead(entries), tuple(blocks), tuple(_line(row, scope) for row, scope in entries)
    )


def _lead(entries: list[tuple[ScopeRow, ScopeEvidence | None]]) -> str:
    ran = [row for row, _ in entries if row.origin.kind is OriginKind.FRESH]
    carried = [row for row, _ in entries if row.origin.kind is OriginKind.CARRIED]
    idle = [row for row, _ in entries if row.origin.kind is OriginKind.NOT_RUN]
    parts = [f"{count(len(ran), 'scope')} ran with {count(sum(row.head_cases or 0 for row in ran), 'case')}"]
    if carried:
        parts.append(f"{count(len(carried), 'scope')} carried over, counted apart")
    if idle:
        parts.append(f"{count(len(idle), 'scope')} not run ({visible(listed(row.scope for row in idle))})")
    return "; ".join(parts) + ". A skip is not a pass."


def _scopes_table(entries: list[tuple[ScopeRow, ScopeEvidence | None]], footnotes: Footnotes) -> Table:
    columns = (
        "Scope",
        "Base, cases",
        "Head, cases",
        "Passed",
        "Failed",
        "Neither",
        "Results are",
        "Took",
        "pytest exit code",
    )
    caption = "Scopes: cases on either side and how head's ended"
    return shared.table("scopes", caption, columns, entries, lambda entry: _scope_cells(*entry, footnotes))


def _scope_cells(row: ScopeRow, scope: ScopeEvidence | None, footnotes: Footnotes) -> tuple[Cell, ...]:
    failed = sum(case.status in _FAILING for case in scope.cases) if scope else None
    neither = None if row.head_cases is None or failed is None else row.head_cases - row.head_passed - failed
    lost = row.base_cases is not None and (row.head_cases or 0) < row.base_cases
    ran = row.head_cases is not None
    return (
        shared.text(row.scope, notes=footnotes.refs((row.problem, *row.notes))),
        shared.whole(row.base_cases),
        shared.whole(row.head_cases, Tone.BAD if lost else Tone.PLAIN),
        shared.whole(
            row.head_passed if ran else None,
            Tone.GOOD if row.head_passed and row.head_passed == row.head_cases else Tone.PLAIN,
        ),
        shared.whole(failed if ran else None, Tone.BAD if failed else Tone.PLAIN),
        shared.whole(neither, Tone.DOUBT if neither else Tone.PLAIN),
        shared.text(origin_words(row.origin), Tone.PLAIN if row.origin.kind is OriginKind.FRESH else Tone.DOUBT),
        shared.text(seconds(scope.seconds if scope else None)),
        shared.whole(scope.exit_code if scope else None),
    )


def _reasons(head: Evidence) -> list[tuple[str, str, str, int]]:
    """(scope, status, reason, n) of every case that is neither a pass nor a failure, most frequent first."""
    found = Counter(
        (scope.scope, case.status.value, case.reason or "no reason given")
        for scope in head.scopes
        for case in scope.cases
        if not case.status.green and case.status not in _FAILING
    )
    return [(*key, number) for key, number in found.most_common()]


def _groups(head: Evidence) -> list[tuple[str, str, int, int]]:
    cases = Counter((scope.scope, case.group) for scope in head.scopes for case in scope.cases if case.group)
    passed = Counter(
        (scope.scope, case.group) for scope in head.scopes for case in scope.cases if case.group and case.status.green
    )
    return [(*key, number, passed[key]) for key, number in sorted(cases.items())]


def _line(row: ScopeRow, scope: ScopeEvidence | None) -> Line:
    if row.head_cases is None:
        had = "" if row.base_cases is None else f"; base has {count(row.base_cases, 'case')}"
        return Line(visible(row.scope), f"{origin_words(row.origin)}{had}", Tone.DOUBT)
    had = "no base" if row.base_cases is None else f"base has {number(row.base_cases)}"
    took = f", {seconds(scope.seconds)}" if scope and scope.seconds is not None else ""
    clean = row.head_passed == row.head_cases and not row.problem
    passed = f"{number(row.head_passed)} of {count(row.head_cases, 'case')} passed ({had})"
    tone = Tone.GOOD if clean else Tone.DOUBT
    return Line(visible(row.scope), f"{passed}, {origin_words(row.origin)}{took}", tone)
