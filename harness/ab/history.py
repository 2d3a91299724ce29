"""What A/A controls of earlier sessions differed by, machine by machine and arm by arm: one line per session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from harness.files import utc_now, writing

LAST = 20
"""Sessions that count; the median of them, so that one bad hour does not blunt every later session."""


def spreads(path: Path, machine: str) -> dict[str, float]:
    """The usual A/A spread of each arm on this machine; empty without a history."""
    seen: dict[str, list[float]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
            if line["machine"] == machine:
                for arm, spread in line["spreads"].items():
                    seen.setdefault(arm, []).append(float(spread))
        except (ValueError, KeyError, TypeError):  # a cut or foreign line says nothing
            continue
    return {arm: median(values[-LAST:]) for arm, values in seen.items()}


def add(path: Path, machine: str, session: str, found: Mapping[str, float]) -> None:
    """Append what this session's control saw."""
    line = {"at": utc_now(), "session": session, "machine": machine, "spreads": dict(found)}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def machine_of(facts: Mapping[str, str]) -> str:
    """What must agree for a history to say anything: device key, processor and how many of them may be used."""
    return " / ".join(facts.get(key, "?") for key in ("device_key", "cpu.model", "cpu.usable", "gpu.uuids"))
