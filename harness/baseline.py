"""Baselines: ``<folder>/<device-key>/<scope>.json``, one case or number per line, sorted, so that a diff reads well.

They are written by ``accept`` only, from sealed bundles, with a reason. A row that moved less than its tolerance keeps
its old value, and a file in which no row changed keeps every byte.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from harness.codec import decode
from harness.comparability import differences, is_asked_for
from harness.errors import EvidenceError, UsageError
from harness.files import read_limited
from harness.model import CaseResult, CaseStatus, Evidence, Metric, Samples, ScopeEvidence, TokenControl
from harness.stats import median
from harness.verdict import Policy

SCHEMA = 1
SIZE_LIMIT = 256 << 20
_NOT_KEPT = {"group", "rounds", "unfit"}  # long or of no use in a comparison


class BaselineFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One file, typed."""

    schema: int
    scope: str
    device_key: str
    environment: dict[str, str]
    cases: tuple[CaseResult, ...]
    metrics: tuple[Metric, ...]
    tokens: tuple[TokenControl, ...]
    samples: tuple[Samples, ...]


def path_of(folder: Path, device_key: str, scope: str) -> Path:
    """Where the baseline of a scope lies."""
    return folder / device_key / f"{scope}.json"


def load_file(path: Path) -> BaselineFile:
    """One baseline file. Raises ``EvidenceError``."""
    baseline = decode(read_limited(path, SIZE_LIMIT), BaselineFile, str(path))
    if baseline.schema != SCHEMA:
        raise EvidenceError(f"{path}: baseline schema {baseline.schema}, this harness reads {SCHEMA}")
    if baseline.environment.get("device_key") != baseline.device_key:
        raise EvidenceError(f"{path}: device key {baseline.device_key} and that of its environment differ")
    return baseline


def load_baseline(folder: Path, device_key: str) -> Evidence:
    """All baselines of a device as evidence; without scopes where none was accepted for it."""
    if not folder.is_dir():
        raise UsageError(f"there is no baselines folder {folder}", "give --against FOLDER, or --against none")
    paths = sorted((folder / device_key).glob("*.json"))
    return as_evidence(f"{folder.name}/{device_key}", device_key, [(path, load_file(path)) for path in paths])


def as_evidence(label: str, device_key: str, files: Iterable[tuple[Path, BaselineFile]]) -> Evidence:
    """Baseline files as one piece of evidence; its digest is over theirs."""
    scopes, digest = [], hashlib.sha256()
    for path, baseline in files:
        if path.stem != baseline.scope:
            raise EvidenceError(f"{path}: holds scope {baseline.scope}")
        if baseline.device_key != device_key:
            raise EvidenceError(f"{path}: holds results of {baseline.device_key}")
        digest.update(path.read_bytes())
        scopes.append(as_scope(baseline))
    return Evidence(label, device_key, tuple(scopes), digest=digest.hexdigest(), environment={"device_key": device_key})


def as_scope(baseline: BaselineFile) -> ScopeEvidence:
    """A baseline file as the scope it stands for, with the facts of the machine it was measured on."""
    return ScopeEvidence(
        baseline.scope,
        cases=baseline.cases,
        metrics=baseline.metrics,
        samples=baseline.samples,
        tokens=baseline.tokens,
        environment=baseline.environment,
    )


def encode_file(baseline: BaselineFile) -> bytes:
    """A baseline file as text: stable order, one row per line."""
    parts = [
        f' "schema": {baseline.schema}',
        f' "scope": {json.dumps(baseline.scope)}',
        f' "device_key": {json.dumps(baseline.device_key)}',
        _block("environment", "{}", [f"{_dump(k)}: {_dump(v)}" for k, v in sorted(baseline.environment.items())]),
        _block("cases", "[]", [_row(case) for case in sorted(baseline.cases, key=lambda row: row.node)]),
        _block("metrics", "[]", [_row(row) for row in sorted(baseline.metrics, key=_name)]),
        _block("tokens", "[]", [_row(row) for row in sorted(baseline.tokens, key=_name)]),
        _block("samples", "[]", [_row(row) for row in sorted(baseline.samples, key=_name)]),
    ]
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _block(key: str, brackets: str, rows: list[str]) -> str:
    if not rows:
        return f' "{key}": {brackets}'
    return f' "{key}": {brackets[0]}\n  ' + ",\n  ".join(rows) + f"\n {brackets[1]}"


def _name(row: Metric | TokenControl | Samples) -> tuple[str, str]:
    return row.node, row.name


def _row(record: CaseResult | Metric | TokenControl | Samples) -> str:
    """A record on one line without what is at its default."""
    kept = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if entry.name not in _NOT_KEPT and value != entry.default:
            kept[entry.name] = value.value if isinstance(value, Enum) else value
    return _dump(kept)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# ---- what a baseline is made of -------------------------------------------------------------------------------------


def kept_facts(environment: dict[str, str]) -> dict[str, str]:
    """The facts a later comparison asks for; what is merely recorded stays in the bundle."""
    return {key: value for key, value in environment.items() if is_asked_for(key)}


def propose(scope: ScopeEvidence, environment: dict[str, str], second: ScopeEvidence | None) -> BaselineFile:
    """The baseline that one scope (and a second run of the same commit, for its samples) amounts to."""
    return BaselineFile(
        schema=SCHEMA,
        scope=scope.scope,
        device_key=environment["device_key"],
        environment=kept_facts(environment),
        cases=tuple(replace(case, seconds=None, group="", reason=_lasting(case)) for case in scope.cases),
        metrics=scope.metrics,
        tokens=scope.tokens,
        samples=pooled(scope, second) if second is not None else (),
    )


def _lasting(case: CaseResult) -> str:
    return case.reason if case.status is CaseStatus.SKIPPED else ""


def pooled(one: ScopeEvidence, other: ScopeEvidence) -> tuple[Samples, ...]:
    """The repeats of two agreeing runs together, each set with how far the two medians lay apart."""
    theirs = {(samples.node, samples.name): samples for samples in other.samples}
    return tuple(
        replace(
            samples,
            values=samples.values + theirs[samples.node, samples.name].values,
            rounds=(),
            unfit=(),
            aa_spread=spread(samples, theirs[samples.node, samples.name]),
        )
        for samples in one.samples
    )


def spread(one: Samples, other: Samples) -> float:
    """How far two medians lie apart, as a factor less one; rounded up to four digits so that the text is steady."""
    first, second = median(one.values), median(other.values)
    return math.ceil((max(first, second) / min(first, second) - 1) * 1e4) / 1e4


def merge(old: BaselineFile | None, new: BaselineFile, policy: Policy) -> BaselineFile:
    """``new``, except that rows within tolerance of ``old`` keep its values; the same object where nothing changed."""
    if old is None:
        return new
    facts = differences(old.environment, new.environment)
    samples = new.samples
    if not any(row.fatal for row in facts):
        before = {_name(row): row for row in old.samples}
        samples = tuple(_steady(before.get(_name(row)), row, policy) for row in new.samples)
    merged = msgspec.structs.replace(new, samples=samples)
    unchanged = msgspec.structs.replace(merged, environment=old.environment)
    if encode_file(unchanged) == encode_file(old) and not any(row.fatal for row in facts):
        return old
    return merged


def _steady(old: Samples | None, new: Samples, policy: Policy) -> Samples:
    if old is None or old.unit != new.unit or old.token_sha256 != new.token_sha256:
        return new
    tolerance = max(policy.margin_floor, old.aa_spread or 0.0)
    return old if spread(old, new) <= tolerance else new
