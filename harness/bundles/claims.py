"""What a bundle says of itself, computed from its contents; and what it does not claim. Pure.

``verify`` computes the claims again from the members and holds them against the stated ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.model import CaseStatus, Evidence, OriginKind, ScopeEvidence


def scope_claims(scope: ScopeEvidence) -> dict[str, object]:
    """One scope in figures: what is stated in ``bundle.json`` and must follow from the scope's folder."""
    return {
        "scope": scope.scope,
        "origin": {"kind": scope.origin.kind.value, "detail": scope.origin.detail},
        "argv": list(scope.argv),
        "exit_code": scope.exit_code,
        "seconds": scope.seconds,
        "problem": scope.problem,
        "cases": dict(sorted(Counter(case.status.value for case in scope.cases).items())),
        "metrics": len(scope.metrics),
        "samples": len(scope.samples),
        "tokens": {f"{control.node} {control.name}": control.sha256 for control in scope.tokens},
    }


def not_claimed(evidence: Evidence, known_scopes: Iterable[str]) -> tuple[str, ...]:
    """What a reader might take for shown and is not. Never empty."""
    absent = sorted(set(known_scopes) - {scope.scope for scope in evidence.scopes})
    lines = [f"scope {name}: not part of this run" for name in absent]
    for scope in evidence.scopes:
        lines += _of_scope(scope)
    if evidence.commit in ("", "unknown"):
        reason = evidence.environment.get("git.reason", "no commit is recorded")
        lines.append(f"which source was measured: {reason}")
    elif evidence.dirty_digest:
        tree = f"the work tree was changed (digest {evidence.dirty_digest[:12]})"
        lines.append(f"that commit {evidence.commit[:12]} behaves so: {tree}")
    if not evidence.native_sha256:
        lines.append("which native library was measured: its digest is not recorded")
    elif "native.reason" in evidence.environment:
        lines.append(f"how the native library was built: {evidence.environment['native.reason']}")
    lines.append(f"anything about another device than {evidence.device_key}, or about its speed under another load")
    return tuple(lines)


def _of_scope(scope: ScopeEvidence) -> Iterable[str]:
    if scope.origin.kind is OriginKind.NOT_RUN:
        yield f"scope {scope.scope}: not run: {scope.origin.detail}"
        return
    if scope.origin.kind is OriginKind.CARRIED:
        digests = [digest[:12] for digest in scope.origin.detail.split(", ")]
        source = f"bundle{'s' if len(digests) > 1 else ''} {', '.join(digests)}"
        yield f"scope {scope.scope} was not measured now: it is carried over from {source}"
    for status, words in ((CaseStatus.SKIPPED, "skipped"), (CaseStatus.NOT_RUN, "not run")):
        reasons = Counter(case.reason for case in scope.cases if case.status is status)
        for reason, count in reasons.most_common():
            yield f"scope {scope.scope}: {count} {'case' if count == 1 else 'cases'} {words}: {reason}"
    unfit = Counter(reason for sample in scope.samples for reason in sample.unfit)
    for reason, count in unfit.most_common():
        yield f"scope {scope.scope}: {count} timings are no measurement: {reason}"
