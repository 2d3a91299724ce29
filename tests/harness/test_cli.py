"""The command line: help that teaches, errors that say what to do, forms of a result."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.commands.arguments import build_parser
from harness.commands.progress_line import ProgressLine
from harness.model import Origin, OriginKind, ScopeSummary
from harness.progress import ScopeProgress
from tests.harness.conftest import REPOSITORY, call_here, harness_environment


def commands() -> list[str]:
    actions = [action for action in build_parser()._actions if action.dest == "command"]
    return sorted(actions[0].choices or {})


def test_help_lists_commands_and_exit_codes(tmp_path: Path) -> None:
    done = call_here(tmp_path, "--help")
    assert done.code == 0
    assert "exit codes: 0 ok, 1 regression" in done.out
    for command in commands():
        assert command in done.out


def test_a_full_disk_is_one_line_and_a_hint(sealed: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "history", str(sealed / "artifacts" / "bundles")],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "harness: the output cannot be written: No space left on device",
        "  -> make room or write elsewhere",
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["| head", ">&-", "2>&-"])
def test_who_reads_no_further_does_not_change_the_verdict(sealed: Path, closed: str) -> None:
    baseline = sealed / "baselines" / "cpu-x86-64" / "green.json"
    baseline.write_text(baseline.read_text().replace("test_plain", "test_gone"))
    head = min((sealed / "artifacts" / "bundles").iterdir())
    own = [sys.executable, "-m", "harness", "compare", "baselines", str(head)]
    reader, writer = os.pipe()
    os.close(reader)
    argv = own if closed == "| head" else ["sh", "-c", f'exec "$@" {closed}', "sh", *own]
    stdout = writer if closed == "| head" else subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, cwd=sealed, env=harness_environment(), stdout=stdout, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_a_file_brings_along_does_not_steer_the_terminal(tmp_path: Path) -> None:
    done = call_here(tmp_path, "ingest", "\x1b]0;pwned\x07.xml", "--scope", "s")
    assert done.code == 2
    assert "there is nothing at \\x1b]0;pwned\\x07.xml" in done.err


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("compare", "{head}", "{head}", "--quarantine", "absent.toml"), 2, "there is no quarantine file absent.toml"),
        (("seal", "runs/a", "--quarantine", "absent.toml"), 2, "there is no quarantine file absent.toml"),
        (("compare", "{head}", "{head}", "--quarantine", "/dev/zero"), 3, "/dev/zero: more than the 1048576 bytes"),
        (("verify", "x" * 300), 2, "cannot use " + "x" * 300 + ": File name too long"),
        (("run", "green", "--suites", "x" * 300), 2, "cannot use " + "x" * 300 + ": File name too long"),
        (("import", "/dev/zero"), 2, "/dev/zero is no regular file"),
        (("attest", "{head}", "--check", "/dev/zero"), 3, "/dev/zero: more than the 67108864 bytes"),
    ],
)
def test_files_that_are_absent_or_have_no_end(sealed: Path, argv: tuple[str, ...], code: int, says: str) -> None:
    head = str(min((sealed / "artifacts" / "bundles").iterdir()))
    done = call_here(sealed, *(word.format(head=head) for word in argv))
    assert done.code == code
    assert says in done.err


@pytest.mark.parametrize("value", ["nan", "-1", "x", "", "0", "inf"])
def test_lengths_of_time_and_counts(tmp_path: Path, value: str) -> None:
    """A limit that no clock reaches, or that is past before anything ran, is a slip."""
    never = [("run", "s", "--timeout"), ("ab", "HEAD", "HEAD", "--budget"), ("ab", "HEAD", "HEAD", "--repeat-timeout")]
    waits = [("run", "s", "--lease-timeout"), ("lease", "list", "--timeout"), ("power", "run", "--seconds")]
    counts = [("run", "s", "--rerun-failed"), ("power", "run", "--trials")]
    asked = [*never, ("ab", "HEAD", "HEAD", "--pairs")]
    asked += waits if value not in ("0", "inf") else []
    asked += counts if value != "0" else []
    for words in asked:
        done = call_here(tmp_path, *words[:-1], f"{words[-1]}={value}")
        assert done.code == 2
        assert f"argument {words[-1]}: " in done.err
    assert "3 is no even number from 2" in call_here(tmp_path, "ab", "HEAD", "HEAD", "--pairs", "3").err


def test_nothing_is_written_into_a_sealed_bundle(sealed: Path) -> None:
    """Not even a lock: any file more would break it."""
    head = str(min((sealed / "artifacts" / "bundles").iterdir()))
    xml = f"{head}/data/scopes/green/junit.xml"
    for words in (
        ("run", "green", "--run-dir", head),
        ("run", "green", "--run-dir", f"{head}/data/new"),
        ("ingest", xml, "--scope", "s", "--run-dir", head),
        ("report", head, "-o", f"{head}/more.txt"),
        ("compare", head, head, "-o", f"{head}/data/report.html"),
        ("attest", head, "-o", f"{head}/statement.json"),
        ("export", head, "-o", f"{head}/x.zip"),
        ("seal", "runs/a", "--out", head),
    ):
        done = call_here(sealed, *words)
        assert done.code == 2
        assert "which is sealed" in done.err
    assert call_here(sealed, "verify", head).code == 0


@pytest.mark.parametrize("command", commands())
def test_each_command_s_help_shows_an_example(tmp_path: Path, command: str) -> None:
    done = call_here(tmp_path, command, "--help")
    assert done.code == 0
    assert f"harness {command}" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nothing",),
        ("seal",),
        ("seal", "x", "--margin", "2"),
        ("seal", "x", "--level", "x"),
        ("accept", "b"),
        ("run",),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = call_here(tmp_path, *arguments)
    assert done.code == 2
    assert "usage: harness" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("seal", "absent"), 2, "is no run folder"),
        (("verify", "absent"), 2, "there is nothing at absent"),
        (("compare", "absent", "absent"), 2, "there is nothing at absent"),
        (("report", "absent"), 2, "there is nothing at absent"),
        (("accept", "absent", "--reason", "x"), 2, "there is nothing at absent"),
        (("import", "absent.zip"), 2, "there is nothing at absent.zip"),
        (("attest", "absent"), 2, "there is nothing at absent"),
        (("export", "absent", "-o", "x.zip"), 2, "there is nothing at absent"),
        (("run", "kernels"), 2, "there is no folder suites"),
    ],
)
def test_what_is_not_there(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = call_here(tmp_path, *arguments)
    assert (done.code, says in done.err) == (code, True), done.err
    assert "->" in done.err


def test_an_interrupted_sealing_says_how_to_go_on(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.bundles.seal.put_common", stopped)
    done = call_here(sealed, "seal", "runs/a", "--against", "none", "--out", "my bundles")
    assert done.code == 130
    assert "-m harness seal runs/a --against none --out 'my bundles'" in done.err
    monkeypatch.undo()
    assert call_here(sealed, "seal", "runs/a", "--against", "none", "--out", "my bundles").code == 0


@pytest.mark.parametrize("module", ["harness.cli", "harness.model"])
def test_an_interrupt_while_modules_load_leaves_no_traceback(module: str) -> None:
    script = f"""
import runpy, sys
sys.path.insert(0, {str(REPOSITORY)!r})
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
runpy.run_module("harness", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "harness: interrupted\n")


def test_forms_of_a_comparison(sealed: Path) -> None:
    one, two = (str(path) for path in sorted((sealed / "artifacts" / "bundles").iterdir()))
    as_json = json.loads(call_here(sealed, "compare", one, two, "--format", "json").out)
    assert as_json["decision"]["code"] == 0
    assert as_json["comparison"]["cases"][0]["outcome"] == "UNCHANGED"
    root = ElementTree.fromstring(call_here(sealed, "compare", one, two, "--format", "junit").out)
    assert [suite.get("name") for suite in root] == ["green", "timed"]
    assert root.get("failures") == "0"
    assert call_here(sealed, "compare", one, two, "--format", "markdown").out.startswith("#")
    done = call_here(sealed, "compare", one, two, "--format", "html", "-o", "out.html")
    assert (done.code, done.out) == (0, "")
    assert (sealed / "out.html").read_text().lstrip().startswith("<!doctype html>")
    refused = call_here(sealed, "compare", one, two, "-o", "absent/out.html")
    assert refused.code == 2
    assert "cannot write absent/out.html" in refused.err


def test_a_comparison_as_junit_names_what_is_wrong(sealed: Path) -> None:
    baseline = sealed / "baselines" / "cpu-x86-64" / "green.json"
    text = baseline.read_text().replace('"value": 96.0', '"value": 95.0').replace("test_plain", "test_gone")
    baseline.write_text(text)
    head = str(min((sealed / "artifacts" / "bundles").iterdir()))
    done = call_here(sealed, "compare", "baselines", head, "--format", "junit")
    assert done.code == 1
    failures = [failure.get("message") for failure in ElementTree.fromstring(done.out).iter("failure")]
    assert failures == [
        "MISSING: passed at base, absent from head; renamed to suites/green/test_green.py::test_plain?",
        "WORSE: base 95.0 head 96.0 register; an exact number moved",
    ]


def test_explain(sealed: Path) -> None:
    one, two = (str(path) for path in sorted((sealed / "artifacts" / "bundles").iterdir()))
    done = call_here(sealed, "compare", one, two, "--explain", "test_decode")
    assert "suites/timed/test_timed.py::test_decode\n  UNCHANGED: passed at base, passed at head" in done.out
    assert "  UNDECIDED: needs n = 5 at head: 3 against 3 repeats" in done.out
    assert "  margin 3.0%: floor of the policy" in done.out
    nothing = call_here(sealed, "compare", one, two, "--explain", "absent")
    assert "no row of this comparison contains 'absent'" in nothing.out
    strict = call_here(sealed, "compare", one, two, "--strict")
    assert strict.code == 5


def test_report_of_a_sealed_bundle(sealed: Path) -> None:
    path = min((sealed / "artifacts" / "bundles").iterdir())
    done = call_here(sealed, "report", str(path), "--format", "markdown")
    assert done.code == 0
    assert "green" in done.out
    assert call_here(sealed, "report", str(path), "--format", "json").code == 0


def test_a_single_baseline_file_and_a_run_are_evidence_too(sealed: Path) -> None:
    done = call_here(sealed, "compare", "baselines/cpu-x86-64/green.json", "runs/a")
    assert done.code == 0, done.out + done.err
    assert call_here(sealed, "compare", "baselines/cpu-x86-64", "runs/a").code == 0
    (sealed / "empty").mkdir()
    assert "is neither a bundle nor a run nor a baseline" in call_here(sealed, "compare", "empty", "runs/a").err
    (sealed / "baselines" / "sm70-x").mkdir()
    (sealed / "baselines" / "sm70-x" / "s.json").write_text("{}")
    assert "holds baselines of cpu-x86-64, sm70-x" in call_here(sealed, "compare", "runs/a", "baselines").err


def test_run_needs_only_the_standard_library_and_pytest() -> None:
    """A GPU machine may have none of the others; importing them there would end the run before it began."""
    heavy = [
        "msgspec",
        "git",
        "defusedxml",
        "junitparser",
        "jinja2",
        "matplotlib",
        "rich",
        "numpy",
        "scipy",
        "torch",
        "pandas",
    ]
    script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {heavy!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import harness.cli, harness.run, harness.pytest_plugin
from harness.machine.environment import look
from pathlib import Path
assert look(Path('.'))['git.reason'] == 'GitPython is not installed'
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_progress(terminal: bool) -> None:
    told = io.StringIO()
    line = ProgressLine(terminal, lambda text: print(text, end="", file=told))
    line.show(ScopeProgress("kernels", 3, {"a": "passed", "b": "failed"}, ["c"]))
    line.show(ScopeProgress("kernels", 3, {"a": "passed", "b": "failed", "c": "passed"}, []))
    line.end(ScopeSummary("kernels", Origin(), 1, 2.0, {"passed": 2, "failed": 1}))
    line.end(ScopeSummary("latency", Origin(OriginKind.NOT_RUN, "no model"), None, None, {}))
    said = told.getvalue()
    assert "kernels: 2/3 cases, 1 failed, 0 s  c" in said
    assert said.count("\r") == (4 if terminal else 0)
    assert "kernels: 1 failed, 2 passed in 2.0 s" in said
    assert "latency: not run: no model" in said
