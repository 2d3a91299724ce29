"""Moves baselines on purpose: from sealed bundles of a clean tree, with a reason that stays in the ledger.

The ledger line is written before the file it speaks of. Killed in between, the next ``accept`` of the same bundles
writes both; ``audit`` sees the gap until then.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.baseline import BaselineFile, encode_file, load_file, merge, path_of, propose, spread
from harness.bundles.bundle import Bundle, scope_of
from harness.comparability import differences, said
from harness.errors import EvidenceError, UsageError, file_error
from harness.files import alone_in, utc_now, write_atomic, writing
from harness.model import CaseStatus, OriginKind, Samples, ScopeEvidence
from harness.verdict import Policy

SCHEMA = 1
LEDGER = "ledger.jsonl"
AGREEMENT = 0.10  # a margin above this could not see any change worth a baseline
_ACCEPTABLE = (CaseStatus.PASSED, CaseStatus.SKIPPED, CaseStatus.XFAILED)


@dataclass(frozen=True)
class Accepted:
    """What became of one scope's baseline: how many rows were added, removed, changed; ``path`` says where."""

    scope: str
    path: Path
    changes: dict[str, dict[str, int]]

    @property
    def changed(self) -> bool:
        """Whether any row differs from the baseline before."""
        return any(count for table in self.changes.values() for count in table.values())


def accept(
    bundles: list[Bundle],
    folder: Path,
    reason: str,
    policy: Policy,
    *,
    scopes: list[str] | None = None,
    without_samples: bool = False,
) -> list[Accepted]:
    """Accept ``scopes`` (all that were measured, unless given) of one bundle, or of two that agree."""
    if not reason.strip():
        raise UsageError("a baseline moves only with a reason", "give --reason 'what changed, and why it is right'")
    if len({bundle.evidence.digest for bundle in bundles}) < len(bundles) or not 1 <= len(bundles) <= 2:
        raise UsageError(f"{len(bundles)} bundles given; one, or two different runs of one commit, are accepted")
    for bundle in bundles:
        _check_source(bundle)
    first = bundles[0]
    names = scopes or [s.scope for s in first.evidence.scopes if s.origin.kind is not OriginKind.NOT_RUN]
    proposals = [_proposal(bundles, name, without_samples=without_samples) for name in names]
    with alone_in(folder):  # two acceptances at once would lose a line of the ledger
        return [_write(bundles, proposal, folder, reason, policy) for proposal in proposals]


def _write(bundles: list[Bundle], proposal: BaselineFile, folder: Path, reason: str, policy: Policy) -> Accepted:
    path = path_of(folder, proposal.device_key, proposal.scope)
    old = load_file(path) if path.exists() else None
    new = merge(old, proposal, policy)
    outcome = Accepted(proposal.scope, path, changes(old, new))
    content = encode_file(new)
    if old is None or content != encode_file(old) or not _in_ledger(folder, path, content):
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        append_line(folder / LEDGER, _line(bundles, proposal, reason, outcome, content, path))
        write_atomic(path, content)
    return outcome


def _check_source(bundle: Bundle) -> None:
    evidence = bundle.evidence
    if evidence.commit in ("", "unknown"):
        raise UsageError(f"{evidence.label}: its commit is unknown; a baseline must say which source it is of")
    if evidence.dirty_digest:
        raise UsageError(
            f"{evidence.label}: measured on a changed work tree (commit {evidence.commit[:12]})",
            "commit the change, run again, accept that bundle",
        )


def _proposal(bundles: list[Bundle], name: str, *, without_samples: bool) -> BaselineFile:
    scopes = [scope_of(bundle, name) for bundle in bundles]
    for bundle, scope in zip(bundles, scopes, strict=True):
        _check_scope(bundle.evidence.label, scope)
    first = bundles[0].evidence
    environment = first.environment_of(scopes[0])
    if without_samples or not any(scope.samples for scope in scopes):
        return propose(scopes[0], environment, None)
    if len(bundles) == 1:
        raise UsageError(
            f"scope {name} has timings, and one run cannot show that they repeat",
            "run the same commit again and give both bundles, or --without-samples",
        )
    _check_agreement(bundles, scopes)
    return propose(scopes[0], environment, scopes[1])


def _check_scope(label: str, scope: ScopeEvidence) -> None:
    what = f"{label}: scope {scope.scope}"
    if scope.origin.kind is not OriginKind.FRESH:
        raise UsageError(f"{what} is {scope.origin.kind} ({scope.origin.detail}); only fresh results are accepted")
    if scope.problem:
        raise UsageError(f"{what}: {scope.problem}; only a run that came to its end is accepted")
    bad = [case for case in scope.cases if case.status not in _ACCEPTABLE]
    if bad:
        raise UsageError(
            f"{what}: {len(bad)} cases are not passing, first {bad[0].node} ({bad[0].status})",
            "mend them, or hold them in quarantine.toml; a baseline holds no failures",
        )


def _check_agreement(bundles: list[Bundle], scopes: list[ScopeEvidence]) -> None:
    """Two runs back a baseline only if nothing but noise tells them apart."""
    one, other = bundles[0].evidence, bundles[1].evidence
    label = f"scope {scopes[0].scope}: the two bundles"
    if one.commit != other.commit:
        raise UsageError(f"{label} are of commits {one.commit[:12]} and {other.commit[:12]}; both must be of one")
    facts = differences(one.environment_of(scopes[0]), other.environment_of(scopes[1]))
    fatal = next((row for row in facts if row.fatal or row.key == "native.sha256"), None)
    if fatal is not None:
        raise UsageError(f"{label} are not of one machine and library: {said(fatal)}")
    for what in ("cases", "metrics", "tokens"):
        rows = [_identity(scope, what) for scope in scopes]
        if rows[0] != rows[1]:
            apart = sorted(key for key in {*rows[0], *rows[1]} if rows[0].get(key) != rows[1].get(key))
            raise UsageError(
                f"{label} disagree in {what}: {' '.join(apart[0])}", "make it repeat before it is accepted"
            )
    theirs = {(samples.node, samples.name): samples for samples in scopes[1].samples}
    if set(theirs) != {(samples.node, samples.name) for samples in scopes[0].samples}:
        raise UsageError(f"{label} do not have the same timings")
    for samples in scopes[0].samples:
        _check_samples(label, samples, theirs[samples.node, samples.name])


def _check_samples(label: str, one: Samples, other: Samples) -> None:
    what = f"{one.node} {one.name}"
    if one.unfit or other.unfit:
        raise UsageError(f"{label}: {what} is unfit for timing: {(one.unfit or other.unfit)[0]}")
    if min(*one.values, *other.values) <= 0:
        raise UsageError(f"{label}: {what} has a value that is not positive")
    if (apart := spread(one, other)) > AGREEMENT:
        raise UsageError(
            f"{label} disagree by {apart:.1%} in {what} ({one.unit}); at most {AGREEMENT:.0%} is accepted",
            "measure on a quieter machine",
        )


def _identity(scope: ScopeEvidence, what: str) -> dict[tuple[str, ...], Any]:
    if what == "cases":
        return {(case.node,): case.status for case in scope.cases}
    if what == "metrics":
        return {(m.node, m.name): (m.value if m.assume else None, m.unit, m.better, m.assume) for m in scope.metrics}
    return {(control.node, control.name): control for control in scope.tokens}


def changes(old: BaselineFile | None, new: BaselineFile) -> dict[str, dict[str, int]]:
    """Rows added, removed and changed, by kind."""
    table = {}
    for kind in ("cases", "metrics", "tokens", "samples"):
        before = {_key(row): row for row in getattr(old, kind, ())}
        after = {_key(row): row for row in getattr(new, kind)}
        both = set(before) & set(after)
        table[kind] = {
            "added": len(set(after) - both),
            "removed": len(set(before) - both),
            "changed": sum(before[key] != after[key] for key in both),
        }
    return table


def _key(row: Any) -> tuple[str, str]:
    return row.node, getattr(row, "name", "")


# ---- the ledger -----------------------------------------------------------------------------------------------------


def _line(
    bundles: list[Bundle], proposal: BaselineFile, reason: str, outcome: Accepted, content: bytes, path: Path
) -> dict[str, Any]:
    first = bundles[0].evidence
    return {
        "schema": SCHEMA,
        "time": utc_now(),
        "device_key": proposal.device_key,
        "scope": proposal.scope,
        "reason": reason.strip(),
        "commit": first.commit,
        "native_sha256": first.native_sha256,
        "bundles": [{"name": b.about.name, "digest": b.evidence.digest} for b in bundles],
        "changes": outcome.changes,
        "previous": hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def append_line(ledger: Path, line: dict[str, Any]) -> None:
    """Append one acceptance: the file is replaced whole, so that it never ends in half a line."""
    try:
        earlier = ledger.read_bytes() if ledger.exists() else b""
    except OSError as error:
        raise file_error(error, ledger, "read") from error
    if earlier and not earlier.endswith(b"\n"):
        raise EvidenceError(f"{ledger}: its last line is cut", "restore it from version control")
    write_atomic(ledger, earlier + json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """All acceptances, oldest first."""
    try:
        content = ledger.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise file_error(error, ledger, "read") from error
    entries = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            entry = json.loads(text)
        except ValueError as error:
            raise EvidenceError(f"{ledger}, line {number}: {error}", "restore it from version control") from error
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise EvidenceError(f"{ledger}, line {number}: not an acceptance of schema {SCHEMA}")
        entries.append(entry)
    return entries


def _in_ledger(folder: Path, path: Path, content: bytes) -> bool:
    """Whether the ledger's last word on a file is this content."""
    sha = hashlib.sha256(content).hexdigest()
    here = (path.parent.name, path.stem)
    words = [line["sha256"] for line in read_ledger(folder / LEDGER) if (line["device_key"], line["scope"]) == here]
    return bool(words) and words[-1] == sha
