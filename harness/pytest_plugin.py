"""The pytest side of the harness: appends lines about the cases as they happen, and judges nothing.

Loaded by name (``-p harness.pytest_plugin``); needs the standard library and pytest. With ``--evidence DIR`` each
process writes ``DIR/records.jsonl`` (an xdist worker ``DIR/records.gw0.jsonl``), one JSON object per line, flushed line
by line, so that a crash leaves the name of the case that was open. Without it the ``record`` fixture only checks what
it is given. Suites ask for the ``record`` fixture; they never import this module.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from harness.machine.fitness import unfit_reasons
from harness.machine.gpus import visible_gpus
from harness.machine.lease import worker_device

SCHEMA = 1
REASON_LIMIT = 2000
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = ("passed", "xfailed", "skipped", "failed", "error")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--evidence DIR``."""
    parser.getgroup("harness").addoption(
        "--evidence", metavar="DIR", default=None, help="write records.jsonl (cases, metrics, samples, tokens) into DIR"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the writer when evidence is asked for."""
    config.addinivalue_line("markers", "group(name): the heading under which a report lists this case")
    directory = config.getoption("--evidence")
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if worker:
        _take_own_device(worker)
    if directory:
        folder = Path(config.invocation_params.dir, directory)
        config.pluginmanager.register(EvidenceWriter(config, folder, worker), "harness-evidence")


def _take_own_device(worker: str) -> None:
    """An xdist worker sees one of the caller's GPUs; set before anything can initialise CUDA."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [gpu.uuid for gpu in visible_gpus(os.environ)[0]] if asked is None else [e for e in asked.split(",") if e]
    if visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = worker_device(worker, visible)


class RecordFile:
    """One append-only file of JSON lines. A line that cannot be written ends the session: silence would be a lie.

    Unbuffered, so that nothing is left over to fail again when the file is closed on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._broken = False
        try:
            self._stream = path.open("ab", buffering=0)
        except OSError as error:
            raise pytest.UsageError(f"--evidence: cannot write {path}: {error.strerror}") from error

    def line(self, kind: str, **fields: Any) -> None:
        """Append one record. After a failure, which was told and ends the session, nothing more is tried."""
        if self._broken:
            return
        line = {"schema": SCHEMA, "kind": kind, "at": round(time.monotonic(), 6), **fields}
        left = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            self._broken = True
            pytest.exit(f"harness: cannot write {self.path}: {error.strerror}", returncode=3)

    def close(self) -> None:
        self._stream.close()


class EvidenceWriter:
    """Turns pytest's hooks into lines. The process that runs a case writes it: under xdist that is a worker."""

    def __init__(self, config: pytest.Config, folder: Path, worker: str) -> None:
        self.config = config
        self.worker = worker
        self.file = RecordFile(folder / (f"records.{worker}.jsonl" if worker else "records.jsonl"))
        self.phases: dict[str, list[pytest.TestReport]] = {}
        self.session_unfit: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.file.line("scope_start", worker=self.worker, pid=os.getpid(), pytest=pytest.__version__)
        self.note_unfit("", [*unfit_reasons(), *self._plugin_reasons()])

    def _plugin_reasons(self) -> list[str]:
        manager = self.config.pluginmanager
        reasons = []
        if manager.hasplugin("_cov") and self.config.getoption("cov_source", None):
            reasons.append("pytest-cov is measuring coverage")
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        if self.worker and workers > 1:
            reasons.append(f"{workers} xdist workers share the machine")
        return reasons

    def note_unfit(self, node: str, reasons: Iterable[str]) -> list[str]:
        """Write reasons not yet known for the whole session; give back those that hold for ``node``."""
        new = [reason for reason in reasons if reason not in self.session_unfit]
        if not node:
            self.session_unfit += new
        for reason in new:
            self.file.line("unfit", node=node, reason=reason)
        return new

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.file.line("deselected", nodes=[item.nodeid for item in items])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.file.line("collected", nodes=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and (self.worker in ("", "gw0")):
            self.file.line("collect_error", node=report.nodeid or ".", reason=_reason(report))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        node = item.nodeid
        marker = item.get_closest_marker("group")
        group = str(marker.args[0]) if marker is not None and marker.args else ""
        self.phases[node] = []
        self.file.line("case_start", node=node, group=group)
        try:
            result = yield
        except BaseException:  # Ctrl-C or pytest.exit inside the case: it neither passed nor crashed
            self.file.line(
                "case_end", node=node, outcome="interrupted", phases={}, seconds=None, reason="interrupted", reruns=0
            )
            raise
        self._end_case(node, self.phases.pop(node))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self.phases:  # absent in the controller of xdist, whose workers write their own
            self.phases[report.nodeid].append(report)

    def _end_case(self, node: str, reports: list[pytest.TestReport]) -> None:
        reruns = sum(str(report.outcome) == "rerun" for report in reports)
        last_setup = max((i for i, report in enumerate(reports) if report.when == "setup"), default=0)
        final = [report for report in reports[last_setup:] if str(report.outcome) != "rerun"]
        phases = {str(report.when): _phase_outcome(report) for report in final}
        outcome = max(phases.values(), key=_RANK.index, default="error")
        seconds = next((report.duration for report in final if report.when == "call"), None)
        worst = next((report for report in final if _phase_outcome(report) == outcome and outcome != "passed"), None)
        reason = _reason(worst) if worst is not None else ("" if phases else "pytest reported no phase of this case")
        self.file.line(
            "case_end", node=node, outcome=outcome, phases=phases, seconds=seconds, reason=reason, reruns=reruns
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        self.note_unfit("", unfit_reasons())
        self.file.line("scope_end", worker=self.worker, exit_code=int(exitstatus))

    def pytest_unconfigure(self) -> None:
        self.file.close()


def _phase_outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "passed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return str(report.outcome)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One paragraph: the skip reason, the crash message, or the last line of whatever pytest kept."""
    wasxfail = getattr(report, "wasxfail", "")
    detail = report.longrepr
    if wasxfail or (report.skipped and not detail):
        text = f"expected failure: {wasxfail}" if wasxfail else "skipped without a reason"
    elif isinstance(detail, tuple):
        text = str(detail[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(detail, "reprcrash", None)
        text = str(crash.message) if crash is not None else str(detail).strip()
    return _COLOUR.sub("", text)[:REASON_LIMIT] or "no reason given"


# ---- the fixture ----------------------------------------------------------------------------------------------------


class Recorder:
    """What a case says about itself. Each name is stated once a case; a wrong argument raises ``ValueError``."""

    def __init__(self, node: str, writer: EvidenceWriter | None) -> None:
        self._node = node
        self._writer = writer
        self._names: dict[str, str] = {}

    def metric(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        better: Literal["lower", "higher", "neither"] = "neither",
        exact: bool = True,
    ) -> None:
        """State one number. ``exact``: any later change of it is a change (a count, a size, an error in ulps)."""
        self._new_name(name, "metric", unit, better)
        number = _finite(f"metric {name!r}", value)
        self._line("metric", name=name, value=number, unit=unit, better=better, assume="exact" if exact else "")

    def samples(
        self,
        name: str,
        values: Sequence[float],
        unit: str,
        *,
        better: Literal["lower", "higher", "neither"] = "lower",
        control: str = "",
        rounds: Sequence[Sequence[float]] = (),
    ) -> None:
        """State the repeats of one noisy quantity, one number per repeat.

        ``control`` names the ``tokens()`` record of the same case that says what was generated meanwhile;
        ``rounds`` are the raw times behind each repeat.
        """
        if not len(values):
            raise ValueError(f"samples {name!r} has no value; record at least one repeat")
        if control and self._names.get(control) != "tokens":
            known = sorted(n for n, kind in self._names.items() if kind == "tokens")
            raise ValueError(
                f"samples {name!r}: control {control!r} is no tokens() record of this case; there are {known}"
            )
        if rounds and len(rounds) != len(values):
            raise ValueError(f"samples {name!r}: {len(values)} repeats but raw rounds of {len(rounds)}")
        self._new_name(name, "samples", unit, better)
        numbers = [_finite(f"samples {name!r}", value) for value in values]
        raw = [[_finite(f"samples {name!r} rounds", value) for value in row] for row in rounds]
        unfit: list[str] = []
        if self._writer is not None:  # a tracer may have been set by the case itself, after the session began
            unfit = self._writer.note_unfit(self._node, unfit_reasons())
        self._line(
            "samples", name=name, values=numbers, unit=unit, better=better, control=control, rounds=raw, unfit=unfit
        )

    def tokens(
        self,
        name: str,
        prompts: Sequence[Sequence[int]],
        finish: Sequence[str],
        *,
        rounds: int,
        acceptance_histogram: Sequence[int] = (),
    ) -> str:
        """State what was generated: token ids of each prompt and why each ended (``stop``, ``length``, ...).

        ``rounds`` counts draft + verify rounds over all prompts, ``acceptance_histogram[i]`` those that emitted ``i``
        tokens. Gives the SHA-256 over all ids in order, each as little-endian int32.
        """
        if not len(prompts) or len(finish) != len(prompts):
            raise ValueError(
                f"tokens {name!r}: {len(prompts)} prompts and {len(finish)} finish reasons; one each is needed"
            )
        if rounds < 0:
            raise ValueError(f"tokens {name!r}: {rounds} rounds")
        self._new_name(name, "tokens", "token", "neither")
        encoded = [_token_bytes(name, ids) for ids in prompts]
        digest = hashlib.sha256(b"".join(encoded)).hexdigest()
        count = sum(len(ids) for ids in prompts)
        self._line(
            "tokens",
            name=name,
            sha256=digest,
            prompt_sha256=[hashlib.sha256(ids).hexdigest() for ids in encoded],
            finish=[str(reason) for reason in finish],
            tokens=count,
            rounds=rounds,
            acceptance_histogram=[int(number) for number in acceptance_histogram],
        )
        return digest

    def unfit(self, reason: str) -> None:
        """Say that times of this case must not be judged, and why."""
        if not reason:
            raise ValueError("unfit() needs a reason")
        if self._writer is not None:
            self._writer.note_unfit(self._node, [reason])

    def group(self, name: str) -> None:
        """Name the heading under which a report lists this case (as ``@pytest.mark.group`` does)."""
        self._line("group", name=name)

    def not_run(self, reason: str) -> NoReturn:
        """End the case as skipped: what it needs (a GPU, a model) is not here. That is never a pass."""
        if not reason:
            raise ValueError("not_run() needs a reason")
        pytest.skip(reason)

    def _new_name(self, name: str, kind: str, unit: str, better: str) -> None:
        if not name or not unit:
            raise ValueError(
                f"{kind} needs a name and a unit, got name={name!r} unit={unit!r} ('1' is the unit of a pure number)"
            )
        if better not in ("lower", "higher", "neither"):
            raise ValueError(f"{kind} {name!r}: better={better!r}; allowed are 'lower', 'higher' and 'neither'")
        if name in self._names:
            raise ValueError(
                f"{kind} {name!r}: this case already stated {self._names[name]} {name!r}; names are used once"
            )
        self._names[name] = kind

    def _line(self, kind: str, **fields: Any) -> None:
        if self._writer is not None:
            self._writer.file.line(kind, node=self._node, **fields)


def _finite(what: str, value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what}: {value!r} is not a finite number")
    return number


def _token_bytes(name: str, ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}i", *ids)
    except struct.error as error:
        raise ValueError(f"tokens {name!r}: a token id is no int32: {error}") from error


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Recorder:
    """Where a case states its metrics, samples and tokens; writes nothing unless the run asked for evidence."""
    writer = request.config.pluginmanager.get_plugin("harness-evidence")
    return Recorder(request.node.nodeid, writer)
