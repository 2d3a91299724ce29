"""What one try left, held against itself: ``scope.json``, records, pytest's own XML and the log tell one story.

Each is written by another hand (the runner, our plugin, pytest), so that an edit of one of them is a contradiction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.ab.folder import check_repeats
from harness.errors import EvidenceError
from harness.ingest.files import check_ingested
from harness.junit import JUnitCase, JUnitReport, pytest_address, read_junit
from harness.model import CaseResult, CaseStatus
from harness.records import RecordSet
from harness.scope_file import ScopeFile

UNWELL = (CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.CRASHED)


def cross_check(folder: Path, record: ScopeFile, records: RecordSet, cases: dict[str, CaseResult]) -> list[str]:
    """Hold the files of a try against its records; they must tell the same story. Gives doubts, raises on a lie."""
    if record.ab is not None:
        return check_repeats(folder, record.ab)
    if record.ingested is not None:
        return check_ingested(folder, record.ingested)
    clean_end = record.exit_code in (0, 1)
    if clean_end:
        _same_end(folder, record, records)
    path = folder / "junit.xml"
    if not path.exists():
        if clean_end:
            raise EvidenceError(f"{path}: missing, though pytest ended with exit code {record.exit_code}")
        return ["junit.xml was never written (the process died): results are those of the records"]
    try:
        report = read_junit(path)
    except EvidenceError:
        if clean_end:
            raise
        return ["junit.xml is cut (the process died): results are those of the records"]
    if clean_end:
        _agree(path, report, cases)
        _counted(folder, record, records)
    return []


def _same_end(folder: Path, record: ScopeFile, records: RecordSet) -> None:
    """Of a process that ended by itself there is a log, and the runner and the plugin tell its end alike."""
    if not (folder / "log.txt").exists():
        raise EvidenceError(f"{folder / 'log.txt'}: missing, though pytest ended with exit code {record.exit_code}")
    if records.exit_code is None:
        raise EvidenceError(f"{folder / 'records.jsonl'}: has no end, though pytest ended with {record.exit_code}")
    if record.exit_code == 0 and records.exit_code != 0:
        raise EvidenceError(f"{folder}: pytest ended with 0 in scope.json and with {records.exit_code} in the records")


def _counted(folder: Path, record: ScopeFile, records: RecordSet) -> None:
    ended = ([end.outcome for end in ends if end.outcome != "interrupted"] for ends in records.ended.values())
    seen: Counter[str] = Counter(outcomes[-1] for outcomes in ended if outcomes)
    if record.counts != seen:
        raise EvidenceError(f"{folder}: scope.json counts {_told(record.counts)}, the records have {_told(seen)}")


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no case"


def _agree(path: Path, report: JUnitReport, cases: dict[str, CaseResult]) -> None:
    stated = {(case.classname, case.name): case for case in report.cases}
    ran = {pytest_address(node): case for node, case in cases.items() if case.status is not CaseStatus.NOT_RUN}
    for address, case in ran.items():
        found = stated.pop(address, None)
        if found is None:
            if "::" not in case.node or case.status is CaseStatus.CRASHED:
                continue
            raise EvidenceError(f"{path}: {case.node} is in the records ({case.status}) and not in the XML")
        if "::" in case.node and not _alike(found, case):
            raise EvidenceError(f"{path}: {case.node} is {found.status} in the XML and {case.status} in the records")
    unknown = [address for address, case in stated.items() if address[0] and case.status is not CaseStatus.ERROR]
    if unknown:
        raise EvidenceError(f"{path}: {'::'.join(unknown[0])} is in the XML and not in the records")


def _alike(stated: JUnitCase, case: CaseResult) -> bool:
    """Whether the XML's outcome is that of the records; of a case listed several times only whether it is unwell."""
    if stated.status is case.status or CaseStatus.FLAKY in (stated.status, case.status):
        return True
    both = (stated.status in UNWELL, case.status in UNWELL)
    return all(both) or (stated.listed > 1 and not any(both))
