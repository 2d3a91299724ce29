"""Not run, not claimed: what a reader must not take from this report."""

from __future__ import annotations

from harness.model import CaseStatus, Evidence, OriginKind
from harness.report.document import Block, Bullets, Line, Section, Tone
from harness.report.words import count, device_limits, visible
from harness.verdict import Comparison, ScopeRow


def section(comparison: Comparison, head: Evidence) -> Section:
    """Scopes not run and why, results that are not fresh, skips, and every claim that is expressly not made."""
    idle = [
        f"{visible(row.scope)}: {visible(row.origin.detail)}"
        for row in comparison.scopes
        if row.origin.kind is OriginKind.NOT_RUN
    ]
    stale = [_carried(row) for row in comparison.scopes if row.origin.kind is OriginKind.CARRIED]
    skipped = sum(case.status is CaseStatus.SKIPPED for scope in head.scopes for case in scope.cases)
    if skipped:
        stale.append(f"{count(skipped, 'case')} skipped; the reasons stand under Coverage")
    claims = list(
        dict.fromkeys(map(visible, (*device_limits(head.device_key), *comparison.not_claimed, *head.not_claimed)))
    )
    blocks: list[Block] = [
        Bullets(tuple(idle) or ("Every scope of this report ran.",), "Not run", Tone.DOUBT if idle else Tone.PLAIN)
    ]
    if stale:
        blocks.append(Bullets(tuple(stale), "Not fresh, or not counted", Tone.DOUBT))
    blocks.append(Bullets(tuple(claims), "Not claimed"))
    brief = [Line("not run", item, Tone.DOUBT) for item in idle]
    brief += [Line("not fresh", item, Tone.DOUBT) for item in stale]
    brief += [Line("not claimed", claim, Tone.QUIET) for claim in claims]
    lead = f"Device key {visible(head.device_key)}. What stands here is outside what this report shows."
    return Section("limits", "Not run, not claimed", lead, tuple(blocks), tuple(brief))


def _carried(row: ScopeRow) -> str:
    cases = count(row.head_cases or 0, "case")
    return f"{visible(row.scope)}: {cases} carried over from {visible(row.origin.detail)}, not measured again"
