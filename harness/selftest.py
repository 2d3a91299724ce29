"""Shows that the gate can fail: a small real suite, one planted fault after the other, each with its exit code.

A gate that was never seen red proves nothing. Everything here goes through the same command line as a real run; only
the times are made up, so that the outcome does not depend on the machine.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.machine.observe import TELEMETRY_FILE
from harness.verdict import ExitCode

# Runs one command in a folder, with extra environment variables; gives the exit code and what was said.
Call = Callable[[Path, list[str], dict[str, str]], tuple[int, str]]

SUITE = '''\
"""Written by `harness selftest`. SELFTEST_FAULT plants one fault."""

import os
import sys

FAULT = os.environ.get("SELFTEST_FAULT", "")


def test_answer(record):
    record.metric("registers", 40, "register", better="lower")
    if FAULT == "crash":
        os._exit(139)
    if FAULT == "skip":
        record.not_run("planted skip")
    assert FAULT != "fail", "planted failure"


if FAULT != "vanish":

    def test_may_vanish():
        pass


def test_decode(record):
    if FAULT == "unfit":
        sys.setprofile(lambda *_: None)
    ids = [[1, 2, 3, 4], [5, 6, 8 if FAULT == "token" else 7]]
    record.tokens("greedy", ids, ["stop", "stop"], rounds=6)
    factor = 1.2 if FAULT == "slow" else 1.0
    repeats = 1 if FAULT == "few" else 4
    record.samples("round_ms", [factor * (10 + 0.01 * i) for i in range(repeats)], "ms", control="greedy")
    sys.setprofile(None)
'''
NODE = "suites/probe/test_probe.py::test_answer"


@dataclass(frozen=True)
class Result:
    """One fault: the exit code it must give, the one it gave, and the first thing that was said."""

    fault: str
    expected: ExitCode
    got: int
    said: str

    @property
    def ok(self) -> bool:
        return self.got == self.expected


def selftest(call: Call, keep: Path | None, tell: Callable[[Result], None]) -> list[Result]:
    """Plant every fault and give the results in order; ``keep`` leaves the project there to look at."""
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise UsageError(f"{keep} is not empty", "give a new folder")
        return _Selftest(call, keep, tell).all()
    with tempfile.TemporaryDirectory(prefix="harness-selftest-") as folder:
        return _Selftest(call, Path(folder), tell).all()


class _Selftest:
    def __init__(self, call: Call, root: Path, tell: Callable[[Result], None]) -> None:
        self.call = call
        self.root = root
        self.tell = tell
        self.results: list[Result] = []
        self.count = 0

    def all(self) -> list[Result]:
        self.prepare()
        self.run_faults()
        self.nights()
        self.evidence_faults()
        self.quarantine_faults()
        self.base_faults()
        return self.results

    def expect(self, fault: str, expected: ExitCode, arguments: list[str]) -> None:
        """Run a command and note whether it ended as it must."""
        code, said = self.call(self.root, arguments, {})
        result = Result(fault, expected, code, _first_reason(said))
        self.results.append(result)
        self.tell(result)

    def must(self, arguments: list[str], fault: str = "") -> None:
        """A step that prepares; what it records may be a fault, but the command must not fail by itself."""
        plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the probe needs no plugin but ours, and starts faster without
        code, said = self.call(self.root, arguments, {"SELFTEST_FAULT": fault, **plain})
        if code not in (ExitCode.OK, ExitCode.REGRESSION):
            raise UsageError(f"selftest could not prepare: harness {' '.join(arguments)} ended with {code}: {said}")

    def run(self, fault: str) -> str:
        """A real run with a fault planted; gives its folder."""
        self.count += 1
        folder = f"artifacts/runs/{self.count:02d}-{fault or 'clean'}"
        self.must(["run", "probe", "--run-dir", folder, "--lease", "none"], fault)
        # Its times are made up: a machine that is busy with something else has nothing to say against them.
        (self.root / folder / "probe" / TELEMETRY_FILE).unlink(missing_ok=True)
        return folder

    def prepare(self) -> None:
        """A committed project, two runs of it, an accepted baseline."""
        suite = self.root / "suites" / "probe" / "test_probe.py"
        suite.parent.mkdir(parents=True)
        suite.write_text(SUITE)
        (self.root / ".gitignore").write_text("artifacts/\nbaselines/\n__pycache__/\n")
        git: Any = importlib.import_module("git")
        with git.Repo.init(self.root) as repo, repo.config_writer() as config:
            config.set_value("user", "name", "harness selftest")
            config.set_value("user", "email", "selftest@example.org")
        with git.Repo(self.root) as repo:
            repo.git.add(".")
            repo.git.commit("-q", "-m", "selftest")
        self.clean = [self.run(""), self.run("")]
        for folder in self.clean:
            self.must(["seal", folder, "--against", "none"])
        self.bundles = sorted(str(path) for path in (self.root / "artifacts/bundles").iterdir())
        self.must(["accept", *self.bundles, "--reason", "selftest"])

    def run_faults(self) -> None:
        """Faults of the engine under test, each seen by a real pytest process."""
        for fault, label, expected in (
            ("", "no fault", ExitCode.OK),
            ("slow", "times 20 % longer", ExitCode.REGRESSION),
            ("vanish", "a case vanished", ExitCode.REGRESSION),
            ("token", "one token flipped", ExitCode.REGRESSION),
            ("fail", "a case fails", ExitCode.REGRESSION),
            ("skip", "a case that passed is skipped", ExitCode.REGRESSION),
            ("crash", "the process dies in a case", ExitCode.REGRESSION),
            ("unfit", "a profiler is attached", ExitCode.NOTHING_COMPARABLE),
        ):
            self.expect(label, expected, ["seal", self.run(fault)])
        self.expect("too few repeats under --strict", ExitCode.UNDECIDED, ["seal", self.run("few"), "--strict"])

    def nights(self) -> None:
        """One bad night is no alarm, two that agree are one."""
        self.must(["seal", self.run("slow")])
        slow = sorted(str(path) for path in (self.root / "artifacts/bundles").glob("*-slow-*"))
        self.expect("one bad night", ExitCode.OK, ["nightly", self.bundles[0], slow[0]])
        self.expect("two bad nights that agree", ExitCode.REGRESSION, ["nightly", self.bundles[0], *slow])

    def evidence_faults(self) -> None:
        """Faults of the evidence itself."""
        folder = self.root / self.run("")
        xml = folder / "probe" / "junit.xml"
        xml.write_bytes(xml.read_bytes()[:-40])
        self.expect("JUnit XML cut short", ExitCode.EVIDENCE_BROKEN, ["seal", str(folder)])
        changed = self.copy_bundle("changed")
        member = changed / "data" / "scopes" / "probe" / "records.jsonl"
        member.chmod(0o644)
        member.write_bytes(member.read_bytes().replace(b"10.0", b"10.1", 1))
        self.expect("one byte of a bundle changed", ExitCode.EVIDENCE_BROKEN, ["verify", str(changed)])
        extra = self.copy_bundle("extra")
        (extra / "data" / "note.txt").write_text("trust me")
        self.expect("a file added to a bundle", ExitCode.EVIDENCE_BROKEN, ["verify", str(extra)])

    def copy_bundle(self, name: str) -> Path:
        target = self.root / "artifacts" / "spoilt" / name
        shutil.copytree(self.bundles[0], target)
        return target

    def quarantine_faults(self) -> None:
        """A failing case is held by a valid quarantine and not by one that ended."""
        failing = self.run("fail")
        today = datetime.now(UTC).date()
        for label, end, expected in (
            ("a failing case in quarantine", today + timedelta(days=1), ExitCode.OK),
            ("its quarantine expired", today - timedelta(days=1), ExitCode.REGRESSION),
        ):
            entry = {
                "node": NODE,
                "owner": "selftest",
                "reason": "planted",
                "since": end - timedelta(days=7),
                "expires": end,
            }
            lines = [f'{key} = "{value}"' for key, value in entry.items()]
            (self.root / "quarantine.toml").write_text("\n".join(["[[case]]", *lines, ""]))
            out = f"artifacts/quarantine-{expected}"
            self.expect(label, expected, ["seal", failing, "--out", out, "--quarantine", "quarantine.toml"])

    def base_faults(self) -> None:
        """A baseline of another device is not compared with."""
        baselines = self.root / "baselines"
        ours = next(path for path in baselines.iterdir() if path.is_dir())
        ours.rename(baselines / "sm00-other-x1")
        again = ["seal", self.clean[0], "--out", "artifacts/other"]
        self.expect("no baseline of this device", ExitCode.NOTHING_COMPARABLE, again)


def _first_reason(said: str) -> str:
    """What a person would read first: our error, or the sentence under the verdict."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("harness: ")), "")
    sentence = " ".join(lines[1:3]) if len(lines) > 1 else ""
    return (error or sentence)[:120]
