"""A scope's folder (in a run or in a bundle) -> ``ScopeEvidence``: records are the witness, JUnit XML the cross-check.

Tries are folded in order: a case that failed and then passed is FLAKY. Samples of a case that is not green are left
out, since they would be times of a failure; they stay in the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.crosscheck import UNWELL, cross_check
from harness.errors import EvidenceError
from harness.files import sha256_file
from harness.machine.environment import same_machine_facts
from harness.machine.observe import TELEMETRY_FILE, machine_doubts, machine_notes
from harness.machine.telemetry import read_samples
from harness.machine.tracks import tracks
from harness.model import (
    CaseResult,
    CaseStatus,
    IllegalRecord,
    Metric,
    OriginKind,
    Samples,
    ScopeEvidence,
    TokenControl,
    Track,
)
from harness.records import read_records, to_cases, to_metrics, to_samples, to_tokens
from harness.rundir import read_json, resume_command
from harness.scope_file import KILLED, ScopeFile, read_scope_file
from harness.shards import Shard, join_facts, join_shards, shard_label

CARRIED_MANIFEST = "carried-manifest-sha256.txt"
SHARDS = "shards"


@dataclass
class Try:
    """One pytest process of a scope, read."""

    record: ScopeFile
    cases: dict[str, CaseResult]
    metrics: tuple[Metric, ...]
    samples: tuple[Samples, ...]
    tokens: tuple[TokenControl, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it ran every case of the scope to the end, so that what it lacks is missing."""
        return not self.record.partial and self.record.state not in ("interrupted", "refused")


def read_scope(folder: Path, common: dict[str, str]) -> ScopeEvidence:
    """All that a scope's folder shows. ``common`` are the facts of the whole run. Raises ``EvidenceError``."""
    if (folder / SHARDS).is_dir():
        shards = shard_folders(folder)
        return join_folders([(path, sha256_file(path / CARRIED_MANIFEST)) for path in shards], common)
    record = read_scope_file(folder)
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


def _read(folder: Path, record: ScopeFile, common: dict[str, str]) -> ScopeEvidence:
    environment = {str(key): str(value) for key, value in read_json(folder / "environment.json").items()}
    own = {} if same_machine_facts(environment, common) else environment
    if record.origin.kind is OriginKind.NOT_RUN:
        return ScopeEvidence(record.scope, record.origin, environment=own, notes=_not_run_notes(folder))
    earlier = attempt_folders(folder)
    if record.attempt != len(earlier) + 1:
        raise EvidenceError(f"{folder}: scope.json is of try {record.attempt}, {len(earlier)} earlier ones are kept")
    tries = [read_try(path) for path in [*earlier, folder]]
    cases, last_try = fold_tries(tries)
    green = {node for node, case in cases.items() if case.status.green}
    timed = any(entry.samples for entry in tries)
    doubts = machine_doubts(folder, timed, float(environment.get("cpu.usable") or 0))
    problem = record.problem or ("" if record.state == "finished" else record.state)
    return ScopeEvidence(
        scope=record.scope,
        origin=record.origin,
        argv=record.argv,
        exit_code=record.exit_code,
        seconds=record.seconds,
        cases=tuple(cases.values()),
        metrics=tuple(metric for entry in tries for metric in entry.metrics if last_try.get(metric.node) is entry),
        samples=tuple(s for entry in tries for s in entry.samples if last_try.get(s.node) is entry and s.node in green),
        tokens=tuple(control for entry in tries for control in entry.tokens if last_try.get(control.node) is entry),
        problem=problem,
        environment=own,
        notes=(*_notes(tries, cases, green), *machine_notes(folder, timed), *doubts),
        doubts=doubts,
        tracks=_tracks(folder / TELEMETRY_FILE),
    )


def shard_folders(folder: Path) -> list[Path]:
    """The shards that a scope was merged from, in their order; nothing else may lie beside them."""
    return _numbered(folder / SHARDS, SHARDS, [path.name for path in folder.iterdir() if path.name != SHARDS])


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
    """The earlier tries of a scope, oldest first; they are numbered from 1."""
    kept = folder / "attempts"
    return _numbered(kept, "tries") if kept.is_dir() else []


def _numbered(folder: Path, what: str, beside: Sequence[str] = ()) -> list[Path]:
    """The folders in ``folder``, which are called 1, 2, 3; ``beside`` is what lies where nothing else may lie."""
    found = {path.name: path for path in folder.iterdir()}
    names = [str(number) for number in range(1, len(found) + 1)]
    if set(found) != set(names) or beside:
        raise EvidenceError(
            f"{folder.parent}: {what} are numbered from 1, found {', '.join(sorted([*found, *beside]))}"
        )
    return [found[name] for name in names]


def _not_run_notes(folder: Path) -> tuple[str, ...]:
    """A scope that was not run has shown nothing; earlier tries that did run are not to be overlooked."""
    shown = [name for name in ("records.jsonl", "junit.xml") if (folder / name).exists()]
    if shown:
        raise EvidenceError(f"{folder}: not run according to scope.json, and yet there is {shown[0]}")
    earlier = [read_try(path) for path in attempt_folders(folder)]
    unwell = sum(case.status in UNWELL for entry in earlier for case in entry.cases.values())
    tries = f"{len(earlier)} earlier {'try' if len(earlier) == 1 else 'tries'} did run"
    return (f"{tries}, {unwell} {'case' if unwell == 1 else 'cases'} ended badly there",) if earlier else ()


def read_try(folder: Path) -> Try:
    """One try. A killed one may lack ``scope.json`` and its XML; what it wrote still counts as history."""
    record = read_scope_file(folder) or KILLED
    if not (folder / "records.jsonl").exists() and record.state in ("not_run", "interrupted"):
        return Try(record, {}, (), (), (), ())
    records = read_records(folder / "records.jsonl")
    cases = {case.node: case for case in to_cases(records)}
    if record.state == "interrupted":
        cases = {node: case for node, case in cases.items() if case.status is not CaseStatus.CRASHED}
    notes = [f"line {records.cut} of the records is cut: the process died while writing it"] if records.cut else []
    notes += cross_check(folder, record, records, cases)
    name = str(folder / "records.jsonl")
    return Try(record, cases, to_metrics(records), to_samples(records, name), to_tokens(records, name), tuple(notes))


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
            if case.status in UNWELL:
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
