"""``quarantine.toml``: cases known to fail, each with owner, reason and an end. They still run.

``[[case]]`` tables with ``node``, ``owner``, ``reason``, ``since``, ``expires`` (a day each) and perhaps ``ticket``.
An entry lasts at most ``LONGEST_DAYS``; more than ``MOST`` of them are no quarantine but a habit, and are refused.
"""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

from harness.errors import EvidenceError, UsageError
from harness.files import read_limited
from harness.model import IllegalRecord
from harness.verdict import Quarantine

LONGEST_DAYS = 30
MOST = 20
SIZE_LIMIT = 1 << 20
_FIELDS = {"node", "owner", "reason", "since", "expires", "ticket"}


def read_quarantine(path: Path, *, named: bool = False) -> dict[str, Quarantine]:
    """Entries by node id. An absent file has none, unless somebody ``named`` it: then it is missed."""
    if not path.exists():
        if named:
            raise UsageError(f"there is no quarantine file {path}", "give one, or leave --quarantine out")
        return {}
    return parse_quarantine(read_limited(path, SIZE_LIMIT), str(path))


def parse_quarantine(content: bytes, name: str) -> dict[str, Quarantine]:
    """Entries of a file called ``name``. Raises ``EvidenceError`` on anything that is not understood."""
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceError(f"{name}: {error}") from error
    cases = table.get("case", [])
    if set(table) - {"case"} or not isinstance(cases, list):
        raise EvidenceError(f"{name}: only [[case]] tables are read, found {sorted(table)}")
    if len(cases) > MOST:
        raise EvidenceError(f"{name}: {len(cases)} entries, at most {MOST} are allowed", "mend or remove some")
    entries: dict[str, Quarantine] = {}
    for number, case in enumerate(cases, 1):
        entry = _entry(case, f"{name}, case {number}")
        if entry.node in entries:
            raise EvidenceError(f"{name}, case {number}: {entry.node} is listed twice")
        entries[entry.node] = entry
    return entries


def _entry(case: object, where: str) -> Quarantine:
    if not isinstance(case, dict) or set(case) - _FIELDS:
        raise EvidenceError(f"{where}: fields are {', '.join(sorted(_FIELDS))}")
    since, expires = _day(case.get("since"), f"{where}: since"), _day(case.get("expires"), f"{where}: expires")
    if not 0 <= (expires - since).days <= LONGEST_DAYS:
        raise EvidenceError(f"{where}: from {since} to {expires}; an entry lasts 0 to {LONGEST_DAYS} days")
    words = {key: case.get(key, "") for key in ("node", "owner", "reason", "ticket")}
    if not all(isinstance(value, str) for value in words.values()):
        raise EvidenceError(f"{where}: node, owner, reason and ticket are strings")
    try:
        return Quarantine(words["node"], words["owner"], words["reason"], expires.isoformat(), words["ticket"])
    except IllegalRecord as error:
        raise EvidenceError(f"{where}: {error}") from error


def _day(value: object, where: str) -> date:
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    try:
        return date.fromisoformat(str(value))
    except ValueError as error:
        raise EvidenceError(f"{where}: {value!r} is no date (YYYY-MM-DD)") from error
