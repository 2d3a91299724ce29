"""Says which baselines no longer deserve trust: edited by hand, never recorded, old, or overtaken by a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.accept import LEDGER, read_ledger
from harness.baseline import as_scope, load_file
from harness.errors import HarnessError
from harness.files import sha256_file
from harness.model import Evidence
from harness.report.words import count
from harness.verdict import Quarantine

STALE_DAYS = 90


class Weight(StrEnum):
    """``WRONG`` must be mended; ``STALE`` should be looked at; ``FINE`` is said so that nothing is silent."""

    WRONG = "wrong"
    STALE = "stale"
    FINE = "fine"


@dataclass(frozen=True)
class Finding:
    """What was looked at (``what``), how much it matters, and what was seen."""

    weight: Weight
    what: str
    detail: str


def audit(folder: Path, quarantine: Mapping[str, Quarantine], heads: Sequence[Evidence], today: date) -> list[Finding]:
    """Look at every baseline below ``folder``; ``heads`` are recent bundles to hold them against."""
    ledger = read_ledger(folder / LEDGER)
    last: dict[tuple[str, str], dict[str, Any]] = {(line["device_key"], line["scope"]): line for line in ledger}
    paths = {(path.parent.name, path.stem): path for path in sorted(folder.glob("*/*.json"))}
    found = [_of_file(path, last.get(key), today) for key, path in paths.items()]
    found += [
        Finding(Weight.WRONG, f"{device}/{scope}", "the ledger speaks of it and the file is gone")
        for device, scope in last
        if (device, scope) not in paths
    ]
    for head in heads:
        found += _against(head, paths)
    found += [_of_quarantine(entry, today) for entry in quarantine.values()]
    return sorted(found, key=lambda finding: (list(Weight).index(finding.weight), finding.what))


def _of_file(path: Path, line: dict[str, Any] | None, today: date) -> Finding:
    what = f"{path.parent.name}/{path.stem}"
    try:
        load_file(path)
    except HarnessError as error:
        return Finding(Weight.WRONG, what, str(error))
    if line is None:
        return Finding(Weight.WRONG, what, "no acceptance in the ledger speaks of it")
    if line["sha256"] != sha256_file(path):
        return Finding(Weight.WRONG, what, f"it was changed since it was accepted on {line['time'][:10]}")
    days = (today - date.fromisoformat(line["time"][:10])).days
    if days < -1:  # a day is what time zones explain
        return Finding(
            Weight.WRONG, what, f"accepted on {line['time'][:10]}, which is still to come: whose clock is wrong?"
        )
    said = f"accepted {count(days, 'day')} ago at {line['commit'][:12]}: {line['reason']}"
    return Finding(Weight.STALE if days > STALE_DAYS else Weight.FINE, what, said)


def _against(head: Evidence, paths: Mapping[tuple[str, str], Path]) -> list[Finding]:
    """What a recent bundle has that its baseline lacks, so that it is not gated."""
    found = []
    for scope in head.scopes:
        path = paths.get((head.device_key, scope.scope))
        what = f"{head.device_key}/{scope.scope}"
        if path is None:
            found.append(Finding(Weight.STALE, what, f"{head.label} ran it, and there is no baseline"))
            continue
        try:
            base = as_scope(load_file(path))
        except HarnessError:
            continue  # told by ``_of_file``
        known = {case.node for case in base.cases}
        new = [case.node for case in scope.cases if case.status.green and case.node not in known]
        timed = {(samples.node, samples.name) for samples in base.samples}
        ungated = [s for s in scope.samples if (s.node, s.name) not in timed]
        if new:
            found.append(Finding(Weight.STALE, what, f"{len(new)} cases of {head.label} are not in it, first {new[0]}"))
        if ungated:
            first = f"{ungated[0].node} {ungated[0].name}"
            found.append(
                Finding(Weight.STALE, what, f"{len(ungated)} timings of {head.label} are not in it, first {first}")
            )
    return found


def _of_quarantine(entry: Quarantine, today: date) -> Finding:
    what = f"quarantine of {entry.node}"
    left = (date.fromisoformat(entry.expires) - today).days
    if left < 0:
        return Finding(Weight.WRONG, what, f"ended {count(-left, 'day')} ago (owner {entry.owner}): {entry.reason}")
    return Finding(
        Weight.STALE if left <= 7 else Weight.FINE, what, f"{left} days left (owner {entry.owner}): {entry.reason}"
    )
