"""The flow of one comparison: a session of two built sides, watched, into a run folder each. Decides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.ab import history
from harness.ab.errors import RepeatError
from harness.ab.figures import ROUND
from harness.ab.folder import SCOPE, SideFolder, about_alone, about_session
from harness.ab.repeat import Repeat, repeat_name, run_repeat, run_worker
from harness.ab.same_work import SameWork
from harness.ab.session import BASE, HEAD, TURNS, Ask, Excuses, Session, run_session, samples
from harness.ab.sides import Side
from harness.ab.together import run_together
from harness.files import json_bytes, write_atomic
from harness.machine.gpus import visible_gpus
from harness.machine.observe import LEASE_FILE, TELEMETRY_FILE, Watch
from harness.machine.telemetry import between, read_samples, sampling
from harness.machine.witness import witness
from harness.pairs import control_log_ratios, control_spread, log_ratios, outliers
from harness.rundir import RunDir, open_run

ALONE_REPEATS = 3
EXPLAIN_S = 300.0
AA_HISTORY = Path("artifacts/ab/aa.jsonl")


@dataclass(frozen=True)
class Measured:
    """A finished session: where its folders are, and what the two choices of a differing token were worth."""

    session: Session
    folder: Path
    gaps: tuple[str, ...] = ()

    def run_folder(self, side: str) -> Path:
        """The run folder of a side, as ``seal`` takes it."""
        return run_folder(self.folder, side)


def run_folder(place: Path, side: str) -> Path:
    """``<session>-base`` and ``<session>-head``: a bundle is named after its run folder."""
    return place.with_name(f"{place.name}-{side}")


@contextlib.contextmanager
def _folders(place: Path) -> Iterator[dict[str, SideFolder]]:
    with contextlib.ExitStack() as stack:
        runs: dict[str, RunDir] = {
            side: stack.enter_context(open_run(run_folder(place, side))) for side in (BASE, HEAD)
        }
        yield {side: SideFolder.begin(side, run) for side, run in runs.items()}


def measure(
    ask: Ask,
    sides: dict[str, Side],
    place: Path,
    watch: Watch,
    timeout_s: float,
    tell: Callable[[Session], None],
    *,
    keep_all: bool = False,
) -> Measured:
    """Run the session of two built sides and write a run folder of each beside ``place``, named after it.

    ``keep_all``: a block counts whatever a witness says about the time in which it was measured.
    """
    facts = {name: side.facts() for name, side in sides.items()}
    machine = f"{history.machine_of(facts[HEAD])} / {ask.order}"
    ask = replace(ask, history=history.spreads(AA_HISTORY, machine))
    gpus = [gpu.uuid for gpu in watch.gpus]
    with _folders(place) as folders:
        telemetry = folders[HEAD].folder / TELEMETRY_FILE

        def make(names: tuple[str, ...], arms: tuple[str, ...], labels: tuple[str, ...]) -> list[dict[str, Repeat]]:
            launches = [sides[name].launch(timeout_s) for name in names]
            try:
                if len(launches) == 1:
                    made = [run_repeat(launches[0], arms, labels[0])]
                else:
                    made = run_together(launches, arms, labels)
            except RepeatError as error:
                raise gpu_lost(error, gpus) from error
            if lost := watch.lost():
                raise RepeatError(f"repeat {labels[0]}: {lost}", "nothing measured since then counts")
            for name, label, (printed, _) in zip(names, labels, made, strict=True):
                for keeper in (BASE, HEAD) if names == (name, name) else (name,):  # both sides are held to a control
                    folder = folders[keeper]
                    folder.keep(_free_name(folder.folder / "repeats", repeat_name(label, arms)), printed)
            return [repeats for _, repeats in made]

        def excuses(started: float, ended: float) -> Sequence[str]:
            if keep_all or ask.order == TURNS:  # what hits both sides of a round alike needs no excuse
                return ()
            seen = between(read_samples(telemetry), started, ended) if telemetry.exists() else []
            return witness(seen, _spare(sides[BASE].cores)).doubts

        with sampling(telemetry, watch=os.getpid(), gpus=gpus):
            session = run_session(ask, make, time.monotonic, excuses, tell)
        seen = read_samples(telemetry) if telemetry.exists() else []
        session.doubts += explain_outliers(session, lambda start, end: witness(between(seen, start, end)).doubts)
        gaps = explain(session.difference, sides) if session.difference else ()
        for name, side in sides.items():
            problem = session.problem if session.side == name else ""
            folder = folders[name]
            folder.finish(about_session(session, name, problem), side.launch(timeout_s).argv, facts[name])
            if watch.lease is not None:
                write_atomic(folder.folder / LEASE_FILE, json_bytes(watch.lease.record.json()))
            if name == BASE and telemetry.exists():
                write_atomic(folder.folder / TELEMETRY_FILE, telemetry.read_bytes())
    if session.pairs and not session.difference:
        history.add(AA_HISTORY, machine, ask.session, _spreads(session))
    return Measured(session, place, gaps)


def explain_outliers(session: Session, doubts: Excuses) -> list[str]:
    """What the machine was seen doing while a pair ran that lies far from the others; they are kept all the same."""
    found = []
    for arm in session.ask.arms if session.pairs and not session.difference else ():
        base, head = (samples(session, side, arm, ROUND) for side in (BASE, HEAD))
        for pair in outliers(log_ratios(base, head)):
            both = [session.repeats[side][arm][pair - 1] for side in (BASE, HEAD)]
            seen = doubts(min(one.started for one in both), max(one.ended for one in both))
            what = "; ".join(seen) or "nothing unusual was seen on the machine meanwhile"
            found.append(f"{arm}, pair {pair} lies far from the others: {what}")
    return found


def _free_name(folder: Path, name: str) -> str:
    """A block that is measured again has new numbers, so a name is free unless somebody else writes here."""
    if (folder / name).exists():
        raise RepeatError(f"{folder / name} is there already: another session writes into this folder")
    return name


def _spare(cores: Sequence[int]) -> float:
    """Processors that the measurement leaves to others."""
    return float((os.cpu_count() or len(cores)) - len(cores))


def _spreads(session: Session) -> dict[str, float]:
    found = {}
    for arm in session.ask.arms:
        base, head = (samples(session, side, arm, ROUND) for side in (BASE, HEAD))
        control = control_log_ratios(base, head)
        if control:
            found[arm] = control_spread(control, session.pairs)
    return found


def gpu_lost(error: RepeatError, before: Sequence[str]) -> RepeatError:
    """The same failure, named for what it is where a GPU that was there is gone."""
    if not before:
        return error
    now = {gpu.uuid for gpu in visible_gpus(os.environ)[0]}
    gone = [uuid for uuid in before if uuid not in now]
    if not gone:
        return error
    return RepeatError(
        f"{', '.join(gone)} was lost while it was measured: {error}",
        "look at the driver's log (dmesg, Xid); what was measured on the other GPUs does not count as this session's",
    )


def measure_alone(session: str, side: Side, arms: Sequence[tuple[str, ...]], place: Path, why: str) -> Path:
    """Measure one side a few times because the other cannot be built: its evidence is kept, nothing is compared."""
    counted: dict[str, list[str]] = {arm: [] for group in arms for arm in group}
    with open_run(run_folder(place, side.name)) as run:
        folder = SideFolder.begin(side.name, run)
        launch = side.launch(EXPLAIN_S)
        for number in range(ALONE_REPEATS):
            for group in arms:
                printed, repeats = run_repeat(launch, group, f"{number:03d}")
                for arm, repeat in repeats.items():
                    counted[arm].append(repeat.source)
                folder.keep(next(iter(repeats.values())).source, printed)
        about = about_alone(session, side.name, counted, why)
        folder.finish(about, launch.argv, side.facts())
    return run_folder(place, side.name) / SCOPE


def explain(difference: SameWork, sides: dict[str, Side]) -> tuple[str, ...]:
    """What both sides' logits say about the two tokens where the texts part; why not, where a side cannot tell."""
    if difference.position is None or difference.base_token is None or difference.head_token is None:
        return ()
    candidates = [difference.base_token, difference.head_token]
    question = {"prompt": difference.prompt, "emitted": list(difference.before), "candidates": candidates}
    said = []
    for name, side in sides.items():
        arguments = [difference.arm, "--gap", json.dumps(question)]
        try:
            answer = json.loads(run_worker(side.launch(EXPLAIN_S), arguments, f"the worker of {name}"))
            one, other = (float(answer[str(token)]) for token in candidates)
        except (RepeatError, ValueError, KeyError, TypeError):
            said.append(f"{name}: its worker cannot tell its logits there")
            continue
        said.append(
            f"{name}: logit of {candidates[0]} is {one:.5f}, of {candidates[1]} {other:.5f}, gap {one - other:+.5f}"
        )
    return tuple(said)
