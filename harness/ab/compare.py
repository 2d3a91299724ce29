"""One comparison from two names to an exit code: sources, builds, session, sealed bundle, words."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.ab.builds import BuildFailed, read_libraries
from harness.ab.measure import Measured, measure, measure_alone
from harness.ab.prune import prune
from harness.ab.session import BASE, HEAD, Ask, Session
from harness.ab.sides import WORKER, Side, built, common_groups, order_of, refuse_shared_library, sources
from harness.ab.trees import Source
from harness.bundles.seal import SealRequest, seal_run
from harness.collect import collect
from harness.commands.machine import take_lease
from harness.machine.gpus import visible_gpus
from harness.machine.observe import Watch
from harness.rundir import new_run_id
from harness.sequential import planned_looks
from harness.verdict import Comparison, ExitCode, MetricOutcome, MetricRow, Policy

Say = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """What came of one comparison. ``outcomes`` are those of the judged quantities, by arm and name."""

    code: int
    outcomes: dict[str, MetricOutcome]
    folder: Path


@dataclass(frozen=True)
class Comparing:
    """Compares commits under one set of options; ``root`` is the repository."""

    root: Path
    options: argparse.Namespace
    say: Say
    show: Say

    def compare(self, base: str, head: str, alpha: float | None = None) -> Answer:
        """Build, measure, seal, judge, tell. Raises ``UsageError`` before anything is measured."""
        refuse_shared_library(os.environ)
        planned_looks(self.options.pairs)
        found = sources(self.root, [base, head])
        for note in dict.fromkeys(f"{source.name}: {source.note}" for source in found if source.note):
            self.say(note)
        session = f"ab-{new_run_id()}"
        with self._watch(f"harness ab {base} {head}") as watch:
            sides = self._built(session, dict(zip((BASE, HEAD), found, strict=True)), watch)
            for line in prune(self.root):
                self.say(line)
            listed = {name: side.listed() for name, side in sides.items()}
            labels = {name: source.label for name, source in zip(sides, found, strict=True)}
            order, why = order_of(listed, self.options.arm, self.options.whole)
            ask = Ask(
                session,
                common_groups(listed, labels, self.options.arm),
                order=order,
                why=why,
                alpha=alpha or self.options.alpha,
                floor=self.options.margin,
                most_pairs=self.options.pairs,
                budget_s=self.options.budget,
            )
            plan = f"up to {ask.most_pairs} pairs, at most {ask.budget_s:g} s (--budget); a line after every two"
            self.say(f"{found[0].label} against {found[1].label}: {', '.join(ask.arms)}; {plan}")
            self.say(f"interleaved by {order}" + (f" ({why})" if why else ""))
            place = self.options.out / session
            timeout_s, keep_all = self.options.repeat_timeout, self.options.keep_all
            measured = measure(ask, sides, place, watch, timeout_s, self._progress, keep_all=keep_all)
        return self._told(measured)

    @contextmanager
    def _watch(self, command: str) -> Iterator[Watch]:
        """The lease of the GPUs, or of the CPU where there is none."""
        gpus, _ = visible_gpus(os.environ)
        if self.options.lease == "none":
            yield Watch(gpus=gpus)
            return
        with take_lease(gpus, not gpus, command, self.options.lease_timeout, self.say) as lease:
            yield Watch(lease, gpus, lease.environment())

    def _built(self, session: str, found: dict[str, Source], watch: Watch) -> dict[str, Side]:
        """Both sides, built. If one fails, the other is measured by itself and the failure is raised."""
        worker = ("-m", self.options.worker) if self.options.worker else WORKER
        sides: dict[str, Side] = {}
        failed: dict[str, BuildFailed] = {}
        libraries = read_libraries(self.options.library)
        for name, source in found.items():
            try:
                build = built(self.root, source, self.say, libraries)
            except BuildFailed as error:
                failed[name] = error
                continue
            sides[name] = Side(
                name, source, build, worker, self.options.cores, watch.environment, watch.descriptors
            )  # fmt: skip
        if not failed:
            return sides
        other, failure = next(iter(failed.items()))
        for name, side in sides.items():
            why = f"{other} does not build; {name} was measured by itself"
            groups = tuple((arm,) for arm in self.options.arm)
            kept = measure_alone(session, side, groups, self.options.out / session, why)
            raise BuildFailed(str(failure), f"{why}: {kept}") from failure
        raise failure

    def _progress(self, session: Session) -> None:
        left_out = f", {len(session.excused)} blocks left out" if session.excused else ""
        self.say(f"  {session.pairs} of at most {session.ask.most_pairs} pairs{left_out}")

    def _told(self, measured: Measured) -> Answer:
        """Seal, and say what came of it."""
        session = measured.session
        self.say(session.ended)
        if session.difference:
            self.show(f"not comparable: {session.difference}")
            for line in measured.gaps:
                self.show(f"  {line}")
            self.show(f"kept    {measured.folder}-base, -head")
            return Answer(ExitCode.NOTHING_COMPARABLE, {}, measured.folder)
        if session.problem and not session.pairs:
            return self._broken(measured)
        comparison, code = self._sealed(measured)
        rows = [row for row in comparison.metrics if row.kind == "samples"]
        for row in rows:
            self.show(verdict_line(row))
        if session.problem:
            return self._broken(measured)
        return Answer(code, {f"{row.node} {row.name}": row.outcome for row in rows}, measured.folder)

    def _broken(self, measured: Measured) -> Answer:
        """A repeat gave no measurement: head's crash is head's fault; anything else proves nothing about head."""
        session = measured.session
        self.show(f"no verdict: {session.problem}")
        self.show(f"kept    {measured.folder}-base, -head ({session.pairs} pairs)")
        if not session.crashed:
            return Answer(ExitCode.EVIDENCE_BROKEN, {}, measured.folder)
        return Answer(ExitCode.REGRESSION if session.side == HEAD else ExitCode.NOTHING_COMPARABLE, {}, measured.folder)

    def _sealed(self, measured: Measured) -> tuple[Comparison, int]:
        """The bundle of head, with base beside it; its gate gives the code."""
        base = collect(measured.run_folder(BASE), f"{measured.session.ask.session} base", [])
        request = SealRequest(
            out=self.options.bundles,
            find_base=lambda head: base,
            policy=Policy(strict=self.options.strict, margin_floor=self.options.margin),
            today=datetime.now(UTC).date().isoformat(),
        )
        sealed = seal_run(measured.run_folder(HEAD), request)
        self.show(f"sealed  {sealed.place}\ndigest  {sealed.digest}")
        return sealed.comparison, sealed.decision.code


def verdict_line(row: MetricRow) -> str:
    """One judged quantity: outcome, ratio, interval, margin and where it comes from, then what there is to doubt."""
    change = "" if row.ratio is None else f" {_percent(row.ratio)}"
    interval = f" [{_percent(row.interval.low)}, {_percent(row.interval.high)}]" if row.interval else ""
    level = f" at {row.interval.level:.2%}" if row.interval else ""
    margin = f", margin {100 * row.margin:.2f} % ({row.margin_source})" if row.margin is not None else ""
    reason = f": {row.reason}" if row.reason else ""
    values = f"{row.base:.4g} -> {row.head:.4g} {row.unit}" if row.base is not None and row.head is not None else ""
    lines = [f"{row.outcome:<9} {row.node} {row.name}{change}{interval}{level}{margin}{reason}", f"  {values}"]
    return "\n".join([*lines, *(f"  {note}" for note in row.notes)])


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"
