"""What a session leaves: a run folder of each side that ``seal`` accepts, every repeat's own bytes in it.

``<session>-base`` and ``<session>-head`` hold one scope, ``ab``: its records follow from ``repeats/*.json``, which are
what the workers printed, and from ``scope.json``, which says which of them count. ``check_repeats`` derives them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.ab import slow_rounds
from harness.ab.errors import RepeatError
from harness.ab.figures import QUANTITIES, lines, samples_of
from harness.ab.repeat import Repeat, parse
from harness.ab.session import Session, samples
from harness.errors import EvidenceError
from harness.files import json_bytes, utc_now, write_atomic, write_new, writing
from harness.machine.telemetry import read_samples
from harness.model import Pairing
from harness.pairs import control_spread, later_over_earlier
from harness.records import encode_lines
from harness.rundir import SCHEMA, RunDir

SCOPE = "ab"
VERSION = 2  # raised when the same repeats would be read otherwise


@dataclass(frozen=True)
class SideFolder:
    """The scope folder of one side, open for its repeats."""

    side: str
    folder: Path
    attempt: int
    started: str

    @classmethod
    def begin(cls, side: str, run: RunDir) -> SideFolder:
        """Make the scope's folder in an open run."""
        folder, attempt = run.begin_attempt(SCOPE)
        with writing(folder / "repeats"):
            (folder / "repeats").mkdir()
        return cls(side, folder, attempt, utc_now())

    def keep(self, name: str, printed: bytes) -> None:
        """Keep what a worker printed, as it came."""
        write_new(self.folder / "repeats" / name, printed)

    def finish(self, about: Mapping[str, Any], argv: Sequence[str], facts: Mapping[str, str]) -> None:
        """Write records, environment and ``scope.json``; ``about``: see ``about_session`` and ``about_alone``."""
        read = {path.name: path.read_bytes() for path in sorted((self.folder / "repeats").iterdir())}
        write_new(self.folder / "records.jsonl", derive(about, read, self.side))
        write_atomic(self.folder / "environment.json", json_bytes(dict(sorted(facts.items()))))
        write_atomic(self.folder / "log.txt", f"{about['ended']}\n{about['problem']}\n".encode())
        record = {
            "schema": SCHEMA,
            "scope": SCOPE,
            "state": "finished",
            "origin": {"kind": "fresh", "detail": ""},
            "argv": list(argv),
            "exit_code": None,
            "seconds": None,
            "problem": "",
            "attempt": self.attempt,
            "started": self.started,
            "finished": utc_now(),
            "ab": about,
        }
        write_atomic(self.folder / "scope.json", json_bytes(record))


def about_session(session: Session, side: str, problem: str) -> dict[str, Any]:
    """Which repeats count and how they are judged: with the repeats' bytes, all that the records follow from.

    ``problem``: why this side has no times; empty where it has.
    """
    pairs = session.pairs
    pairings: dict[str, dict[str, Any]] = {}
    for arm in session.ask.arms if pairs else ():
        pairings[arm] = {name: asdict(pairing) for name in QUANTITIES if (pairing := _pairing(session, arm, name))}
    return {
        "version": VERSION,
        "side": side,
        "session": session.ask.session,
        "ended": session.ended,
        "problem": problem,
        "counted": {arm: [r.source for r in session.repeats[side][arm][:pairs]] for arm in session.ask.arms},
        "warm_up": {arm: f"000-{'+'.join(group)}.json" for group in session.ask.groups for arm in group},
        "pairings": pairings,
        "controls": {
            arm: [[pair.earlier.source, pair.later.source] for pair in found] for arm, found in session.controls.items()
        },
        "excused": [asdict(excused) for excused in session.excused],
        "doubts": session.doubts,
        # In seconds of CLOCK_MONOTONIC, as telemetry.jsonl counts: a slow repeat lies beside what the machine did.
        "spans": {r.source: [r.started, r.ended] for found in session.repeats[side].values() for r in found},
    }


def about_alone(session: str, side: str, counted: Mapping[str, Sequence[str]], why: str) -> dict[str, Any]:
    """The same for a side that was measured without the other: times that nothing is compared with."""
    return {
        "version": VERSION,
        "side": side,
        "session": session,
        "ended": why,
        "problem": "",
        "counted": {arm: list(names) for arm, names in counted.items()},
        "warm_up": dict.fromkeys(counted, ""),
        "pairings": {arm: dict.fromkeys(QUANTITIES) for arm in counted},
        "controls": {},
        "excused": [],
        "doubts": [],
    }


def _pairing(session: Session, arm: str, quantity: str) -> Pairing | None:
    return samples(session, "base", arm, quantity).pairing


def derive(about: Mapping[str, Any], read: Mapping[str, bytes], side: str) -> bytes:
    """The records of one side, from what its workers printed."""
    found = []
    for arm, counted in about["counted"].items():
        warm_up = [name for name in [about["warm_up"][arm]] if name in read]
        repeats = [_of(arm, read, name, side) for name in counted or warm_up]
        controls = [[_of(arm, read, name, side) for name in pair] for pair in about["controls"].get(arm, [])]
        told = about["pairings"].get(arm, {})
        pairings = {
            name: _told(pairing, name, controls, len(repeats)) if pairing else None for name, pairing in told.items()
        }
        nothing = "" if counted else f"no pair was measured: {about['problem'] or about['ended']}"
        found += lines(arm, repeats, pairings, about["problem"] or nothing)
    return encode_lines(found)


def _told(told: Mapping[str, Any], quantity: str, controls: Sequence[Sequence[Repeat]], pairs: int) -> Pairing:
    """How one quantity is judged, with the control that follows from its repeats; no margin may be below it."""
    if told["control"] is None:
        return Pairing(**told)
    control = [
        later_over_earlier(samples_of([earlier], quantity), samples_of([later], quantity))
        for earlier, later in controls
    ]
    spread = control_spread(control, pairs)
    if spread > told["margin"]:
        said = f"the margin of {quantity} is {told['margin']:.4g}, less than its A/A control of {spread:.4g}"
        raise EvidenceError(said)
    return Pairing(**{**told, "control": tuple(control)})


def _of(arm: str, read: Mapping[str, bytes], name: str, side: str) -> Repeat:
    try:
        return parse(read[name], f"{name} of {side}", name)[arm]
    except KeyError:
        raise EvidenceError(f"repeats/{name} is missing, or has no arm {arm}") from None
    except RepeatError as error:
        raise EvidenceError(str(error)) from error


def check_repeats(folder: Path, about: Mapping[str, Any]) -> list[str]:
    """Hold the records against the repeats' own bytes; gives what there is to doubt."""
    excused = [f"block {row['block']} was left out and measured again: {row['reasons'][0]}" for row in about["excused"]]
    notes = [f"A/B session {about['session']}: {about['ended']}", *excused, *about["doubts"]]
    if about["version"] != VERSION:
        return [*notes, f"written by rules {about['version']}, this harness has {VERSION}: not derived again"]
    read = {path.name: path.read_bytes() for path in sorted((folder / "repeats").glob("*.json"))}
    if derive(about, read, about["side"]) != (folder / "records.jsonl").read_bytes():
        raise EvidenceError(f"{folder}: records.jsonl does not follow from the repeats in repeats/")
    telemetry = folder / "telemetry.jsonl"
    seen = read_samples(telemetry) if telemetry.exists() else []
    for arm, counted in about["counted"].items():
        repeats = [_of(arm, read, name, about["side"]) for name in counted]
        notes += slow_rounds.explain(f"{arm} of {about['side']}", repeats, seen)
        if alone := sum(repeat.alone for repeat in repeats):
            notes.append(f"{arm} of {about['side']}: {alone} steps were made when the other side had ended already")
    return notes
