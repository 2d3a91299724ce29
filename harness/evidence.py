"""A scope's folder (in a run or in a bundle) -> ``ScopeEvidence``: records are the witness, JUnit XML the cross-check.

Tries are folded in order: a case that failed and then passed is FLAKY. Samples of a case that is not green are left
out, since they would be times of a failure; they stay in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.ab.folder import check_repeats
from harness.errors import EvidenceError
from harness.files import sha256_file
from harness.ingest.files import check_ingested
from harness.junit import JUnitReport, pytest_address, read_junit
from harness.machine.environment import same_machine_facts
from harness.machine.observe import TELEMETRY_FILE, machine_notes
from harness.machine.telemetry import read_samples
from harness.machine.tracks import tracks
from harness.model import (
    CaseResult,
    CaseStatus,
    IllegalRecord,
    Metric,
    Origin,
    OriginKind,
    Samples,
    ScopeEvidence,
    TokenControl,
    Track,
)
from harness.records import RecordSet, read_records, to_cases, to_metrics, to_samples, to_tokens
from harness.rundir import read_json, read_scope_json, resume_command
from harness.shards import Shard, join_facts, join_shards, shard_label

CARRIED_MANIFEST = "carried-manifest-sha256.txt"
SHARDS = "shards"
_UNWELL = (CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.CRASHED)


@dataclass
class Try:
    """One pytest process of a scope, read."""

    record: dict[str, Any]
    cases: dict[str, CaseResult]
    metrics: tuple[Metric, ...]
    samples: tuple[Samples, ...]
    tokens: tuple[TokenControl, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it ran every case of the scope to the end, so that what it lacks is missing."""
        return not self.record.get("partial") and self.record["state"] not in ("interrupted", "refused")


def read_scope(folder: Path, common: dict[str, str]) -> ScopeEvidence:
    """All that a scope's folder shows. ``common`` are the facts of the whole run. Raises ``EvidenceError``."""
    if (folder / SHARDS).is_dir():
        shards = shard_folders(folder)
        return join_folders([(path, sha256_file(path / CARRIED_MANIFEST)) for path in shards], common)
    record = read_scope_json(folder)
    if record is None:
        raise EvidenceError(
            f"{folder}: scope.json is missing: this scope is unfinished",
            f"finish it with: {resume_command(folder.parent, folder.name)}",
        )
    try:
        return _read(folder, record, common)
    except IllegalRecord as error:
        raise EvidenceError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{folder / 'scope.json'}: not as this harness writes it: {error!r}") from error


def _read(folder: Path, record: dict[str, Any], common: dict[str, str]) -> ScopeEvidence:
    scope = str(record["scope"])
    origin = Origin(OriginKind(record["origin"]["kind"]), str(record["origin"]["detail"]))
    environment = {str(key): str(value) for key, value in read_json(folder / "environment.json").items()}
    own = {} if same_machine_facts(environment, common) else environment
    if origin.kind is OriginKind.NOT_RUN:
        return ScopeEvidence(scope, origin, environment=own)
    tries = [read_try(path) for path in attempt_folders(folder)] + [read_try(folder)]
    cases, last_try = fold_tries(tries)
    green = {node for node, case in cases.items() if case.status.green}
    problem = (
        "" if record["state"] == "finished" and not record["problem"] else str(record["problem"] or record["state"])
    )
    return ScopeEvidence(
        scope=scope,
        origin=origin,
        argv=tuple(record["argv"]),
        exit_code=record["exit_code"],
        seconds=record["seconds"],
        cases=tuple(cases.values()),
        metrics=tuple(metric for entry in tries for metric in entry.metrics if last_try.get(metric.node) is entry),
        samples=tuple(s for entry in tries for s in entry.samples if last_try.get(s.node) is entry and s.node in green),
        tokens=tuple(control for entry in tries for control in entry.tokens if last_try.get(control.node) is entry),
        problem=problem,
        environment=own,
        notes=(*_notes(tries, cases, green), *machine_notes(folder, any(entry.samples for entry in tries))),
        tracks=_tracks(folder / TELEMETRY_FILE),
    )


def shard_folders(folder: Path) -> list[Path]:
    """The shards that a scope was merged from, in their order; nothing else may lie beside them."""
    shards = {path.name: path for path in (folder / SHARDS).iterdir()}
    names = [str(number) for number in range(1, len(shards) + 1)]
    beside = [path.name for path in folder.iterdir() if path.name != SHARDS]
    if set(shards) != set(names) or beside:
        raise EvidenceError(f"{folder}: shards are numbered from 1, found {', '.join(sorted([*shards, *beside]))}")
    return [shards[name] for name in names]


def join_folders(shards: Sequence[tuple[Path, str]], common: dict[str, str]) -> ScopeEvidence:
    """One scope out of the folders of its shards, each with the digest of the bundle it was measured for."""
    found = []
    for number, (folder, digest) in enumerate(shards, 1):
        scope = read_scope(folder, {})
        found.append(Shard(shard_label(number, digest), scope, scope.environment))
    facts = join_facts([shard.facts for shard in found])
    return replace(join_shards(found), environment={} if same_machine_facts(facts, common) else facts)


def _tracks(path: Path) -> tuple[Track, ...]:
    """What the machine did meanwhile; a scope that was not watched has none."""
    return tracks(read_samples(path)) if path.exists() else ()


def attempt_folders(folder: Path) -> list[Path]:
    """The earlier tries of a scope, oldest first."""
    kept = folder / "attempts"
    return sorted(kept.iterdir(), key=lambda path: int(path.name)) if kept.is_dir() else []


def read_try(folder: Path) -> Try:
    """One try. A killed one may lack ``scope.json`` and its XML; what it wrote still counts as history."""
    record = read_scope_json(folder) or {
        "state": "interrupted",
        "exit_code": None,
        "problem": "killed",
        "seconds": None,
    }
    if not (folder / "records.jsonl").exists() and record["state"] in ("not_run", "interrupted"):
        return Try(record, {}, (), (), (), ())
    records = read_records(folder / "records.jsonl")
    cases = {case.node: case for case in to_cases(records)}
    if record["state"] == "interrupted":
        cases = {node: case for node, case in cases.items() if case.status is not CaseStatus.CRASHED}
    notes = [f"line {records.cut} of the records is cut: the process died while writing it"] if records.cut else []
    notes += cross_check(folder, record, records, cases)
    samples = to_samples(records, str(folder / "records.jsonl"))
    return Try(record, cases, to_metrics(records), samples, to_tokens(records), tuple(notes))


def cross_check(folder: Path, record: dict[str, Any], records: RecordSet, cases: dict[str, CaseResult]) -> list[str]:
    """Hold pytest's own XML against the records; they must tell the same story. Gives doubts, raises on a lie."""
    if "ab" in record:
        return check_repeats(folder, record["ab"])
    if "ingested" in record:
        return check_ingested(folder, record["ingested"])
    clean_end = record["exit_code"] in (0, 1)
    path = folder / "junit.xml"
    if not path.exists():
        if clean_end:
            raise EvidenceError(f"{path}: missing, though pytest ended with exit code {record['exit_code']}")
        return ["junit.xml was never written (the process died): results are those of the records"]
    try:
        report = read_junit(path)
    except EvidenceError:
        if clean_end:
            raise
        return ["junit.xml is cut (the process died): results are those of the records"]
    if clean_end:
        _agree(path, report, cases)
    return []


def _agree(path: Path, report: JUnitReport, cases: dict[str, CaseResult]) -> None:
    stated: dict[tuple[str, str], CaseStatus] = {(case.classname, case.name): case.status for case in report.cases}
    ran = {pytest_address(node): case for node, case in cases.items() if case.status is not CaseStatus.NOT_RUN}
    for address, case in ran.items():
        found = stated.pop(address, None)
        if found is case.status or "::" not in case.node or (found is None and case.status is CaseStatus.CRASHED):
            continue
        if found is None:
            raise EvidenceError(f"{path}: {case.node} is in the records ({case.status}) and not in the XML")
        if (found in _UNWELL) != (case.status in _UNWELL) and CaseStatus.FLAKY not in (found, case.status):
            raise EvidenceError(f"{path}: {case.node} is {found} in the XML and {case.status} in the records")
    unknown = [address for address, status in stated.items() if address[0] and status is not CaseStatus.ERROR]
    if unknown:
        raise EvidenceError(f"{path}: {'::'.join(unknown[0])} is in the XML and not in the records")


def fold_tries(tries: list[Try]) -> tuple[dict[str, CaseResult], dict[str, Try]]:
    """The last word on every case, and the try it comes from."""
    cases: dict[str, CaseResult] = {}
    source: dict[str, Try] = {}
    failed_in: dict[str, int] = {}
    for number, entry in enumerate(tries, 1):
        if entry.whole:  # a case that the whole try no longer has is gone
            cases, source = {}, {}
            if not failed_in and all(case.status is CaseStatus.PASSED for case in entry.cases.values()):
                cases, source = dict(entry.cases), dict.fromkeys(entry.cases, entry)
                continue
        for node, case in entry.cases.items():
            if case.status is CaseStatus.NOT_RUN and (node in cases or not entry.whole):
                continue
            if case.status in _UNWELL:
                failed_in.setdefault(node, number)
            if case.status is CaseStatus.PASSED and node in failed_in:
                reason = f"failed at try {failed_in[node]}, passed at try {number}"
                case = replace(case, status=CaseStatus.FLAKY, reason=reason)
            cases[node], source[node] = case, entry
    return cases, source


def _notes(tries: list[Try], cases: dict[str, CaseResult], green: set[str]) -> tuple[str, ...]:
    notes = [note for entry in tries for note in entry.notes]
    if len(tries) > 1:
        notes.append(f"{len(tries)} tries are kept; the last one of each case counts")
    lost = {sample.node for entry in tries for sample in entry.samples if sample.node in cases} - green
    notes += [f"{node}: its times are left out, it is {cases[node].status}" for node in sorted(lost)]
    return tuple(dict.fromkeys(notes))
