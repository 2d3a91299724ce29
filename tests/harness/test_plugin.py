"""The pytest plugin, seen through real pytest processes: what it writes, and that it is inert without --evidence."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.pytest_plugin import Recorder
from tests.harness.conftest import harness_environment

PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_pytest(
    root: Path, *arguments: str, env: dict[str, str] | None = None, interpreter: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    argv = [
        sys.executable,
        *interpreter,
        "-m",
        "pytest",
        "-p",
        "harness.pytest_plugin",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    environment = harness_environment({**PLAIN, **(env or {})})
    return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True)


def lines_of(folder: Path, name: str = "records.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    (tmp_path / "evidence").mkdir()
    return tmp_path


def write(root: Path, text: str) -> None:
    (root / "test_it.py").write_text(text)


def test_every_end_of_a_case_is_written(project: Path) -> None:
    (project / "ev").mkdir()
    done = run_pytest(project, "suites/faults", "--evidence", "ev")
    assert done.returncode == 1
    ends = {line["node"].rpartition("::")[2]: line for line in lines_of(project / "ev") if line["kind"] == "case_end"}
    outcomes = {name: line["outcome"] for name, line in ends.items()}
    assert outcomes == {
        "test_before": "passed",
        "test_fails": "failed",
        "test_skips": "skipped",
        "test_xfails": "xfailed",
        "test_setup_error": "error",
        "test_teardown_error": "error",
        "test_fails_twice": "error",
        "test_open": "passed",
        "test_after": "passed",
    }
    assert ends["test_fails_twice"]["phases"] == {"setup": "passed", "call": "failed", "teardown": "error"}
    assert ends["test_setup_error"]["seconds"] is None
    assert ends["test_fails"]["seconds"] > 0
    assert ends["test_skips"]["reason"] == "not today"
    assert "one is not two" in ends["test_fails"]["reason"]
    assert ends["test_xfails"]["reason"] == "expected failure: known"


def test_a_crash_leaves_the_open_case(project: Path) -> None:
    (project / "ev").mkdir()
    done = run_pytest(project, "suites/faults", "--evidence", "ev", env={"FIXTURE_FAULT": "crash"})
    assert done.returncode == -11
    lines = lines_of(project / "ev")
    assert lines[-1]["kind"] == "metric"
    assert {name: value for name, value in lines[-2].items() if name != "at"} == {
        "schema": 1,
        "kind": "case_start",
        "node": "suites/faults/test_faults.py::test_open",
        "group": "",
    }
    assert next(line for line in lines if line["kind"] == "collected")["nodes"][-1].endswith("test_after")


def test_what_a_case_states(project: Path) -> None:
    (project / "ev").mkdir()
    done = run_pytest(project, "suites/green", "suites/timed", "--evidence", "ev")
    assert done.returncode == 0, done.stdout
    lines = lines_of(project / "ev")
    token = next(line for line in lines if line["kind"] == "tokens" and "green" in line["node"])
    ids = [[1, 2, 3, 2], [5, 6]]
    packed = [struct.pack(f"<{len(row)}i", *row) for row in ids]
    assert token["sha256"] == hashlib.sha256(b"".join(packed)).hexdigest()
    assert token["prompt_sha256"] == [hashlib.sha256(row).hexdigest() for row in packed]
    assert (token["tokens"], token["rounds"], token["acceptance_histogram"]) == (6, 3, [0, 2, 1])
    sample = next(line for line in lines if line["kind"] == "samples")
    assert sample["values"] == [10.0, 10.1, 10.2]
    assert sample["control"] == "greedy"
    assert sample["unfit"] == []
    assert not [line for line in lines if line["kind"] == "unfit"]
    starts = {line["node"].rpartition("::")[2]: line["group"] for line in lines if line["kind"] == "case_start"}
    assert starts["test_sizes[8]"] == "numbers"
    assert starts["test_plain"] == ""


def test_inert_without_evidence(project: Path) -> None:
    done = run_pytest(project, "suites/green", "suites/timed")
    assert done.returncode == 0, done.stdout
    assert not list(project.rglob("*.jsonl"))


def test_unwritable_evidence_is_a_usage_error(suites: Path) -> None:
    write(suites, "def test_a(): pass\n")
    done = run_pytest(suites, "--evidence", "nowhere/at/all")
    assert done.returncode == 4
    assert "cannot write" in done.stderr
    assert "records.jsonl" in done.stderr


def test_a_disk_that_fills_up_ends_the_session(suites: Path) -> None:
    """Going on without records would be silence; ``/dev/full`` takes no byte."""
    write(suites, "def test_a(): pass\n")
    (suites / "evidence" / "records.jsonl").symlink_to("/dev/full")
    done = run_pytest(suites, "--evidence", "evidence")
    assert done.returncode == 3
    assert "No space left on device" in done.stdout + done.stderr


def test_workers_write_their_own_files(suites: Path) -> None:
    write(suites, "import os, pytest\n@pytest.mark.parametrize('i', range(6))\ndef test_a(i, record):\n"
          "    record.samples('t', [1.0], 'ms')\n    if i == 5: os._exit(9)\n")  # fmt: skip
    arguments = ("-n", "2", "--max-worker-restart=0", "-p", "xdist", "--evidence", "evidence")
    done = run_pytest(suites, *arguments)
    assert done.returncode == 1, done.stdout
    names = sorted(path.name for path in (suites / "evidence").iterdir())
    assert names == ["records.gw0.jsonl", "records.gw1.jsonl", "records.jsonl"]
    workers = lines_of(suites / "evidence", names[0]) + lines_of(suites / "evidence", names[1])
    started = [line["node"] for line in workers if line["kind"] == "case_start"]
    ended = [line["node"] for line in workers if line["kind"] == "case_end"]
    assert set(started) - set(ended) >= {"test_it.py::test_a[5]"}
    assert {line["reason"] for line in workers if line["kind"] == "unfit"} == {"2 xdist workers share the machine"}
    controller = lines_of(suites / "evidence")
    assert {line["kind"] for line in controller} == {"scope_start", "scope_end"}


def test_unfit_runs_say_so(suites: Path) -> None:
    """Everything at once, so that it costs one process; ``test_fitness`` has the parts."""
    write(suites, "def test_a(record):\n    record.samples('t', [1.0], 'ms')\n")
    interpreter = ("-X", "dev", "-X", "tracemalloc", "-m", "cProfile", "-o", "/dev/null")
    env = {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_INJECTION64_PATH": "/x.so"}
    done = run_pytest(suites, "--evidence", "evidence", env=env, interpreter=interpreter)
    assert done.returncode == 0, done.stdout + done.stderr
    reasons = " / ".join(line["reason"] for line in lines_of(suites / "evidence") if line["kind"] == "unfit")
    for said in (
        "development mode is on",
        "tracemalloc is tracing",
        "a profile function is set (Profile)",
        "CUDA_LAUNCH_BLOCKING=1: every kernel launch waits",
        "CUDA_INJECTION64_PATH is set",
    ):
        assert said in reasons


def test_a_tracer_set_by_the_case_is_seen_at_its_samples(suites: Path) -> None:
    write(suites, "import sys\ndef test_a(record):\n    sys.settrace(lambda *_: None)\n"
          "    record.samples('t', [1.0], 'ms')\n    sys.settrace(None)\n")  # fmt: skip
    assert run_pytest(suites, "--evidence", "evidence").returncode == 0
    sample = next(line for line in lines_of(suites / "evidence") if line["kind"] == "samples")
    assert sample["unfit"] == ["a trace function is set (test_a.<locals>.<lambda>)"]


def test_reruns_are_counted(suites: Path) -> None:
    """A rerun plugin reports the outcome ``rerun``; a case that passes in the end is then not simply green."""
    (suites / "conftest.py").write_text(
        "from _pytest.runner import runtestprotocol\n"
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=False)\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    for turn in range(3):\n"
        "        reports = runtestprotocol(item, nextitem=nextitem, log=False)\n"
        "        failed = any(r.failed for r in reports)\n"
        "        for r in reports:\n"
        "            if failed and r.failed: r.outcome = 'rerun'\n"
        "            item.ihook.pytest_runtest_logreport(report=r)\n"
        "        if not failed: break\n"
        "        item._initrequest()\n"
        "    return True\n"
    )
    write(suites, "TRIES = []\ndef test_a():\n    TRIES.append(1)\n    assert len(TRIES) == 3\n")
    run_pytest(suites, "--evidence", "evidence")
    end = next(line for line in lines_of(suites / "evidence") if line["kind"] == "case_end")
    assert (end["outcome"], end["reruns"]) == ("passed", 2)


# ---- the fixture's own checks ---------------------------------------------------------------------------------------


@pytest.fixture
def recorder() -> Recorder:
    return Recorder("node", None)


def test_names_are_used_once(recorder: Recorder) -> None:
    recorder.metric("m", 1, "1")
    with pytest.raises(ValueError, match="already stated metric 'm'"):
        recorder.samples("m", [1.0], "ms")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(recorder: Recorder, value: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        recorder.metric("m", value, "1")
    with pytest.raises(ValueError, match="not a finite number"):
        recorder.samples("s", [1.0, value], "ms")


def test_a_control_must_be_there_first(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match=r"'greedy' is no tokens\(\) record of this case"):
        recorder.samples("s", [1.0], "ms", control="greedy")


def test_wrong_arguments_are_named(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="at least one repeat"):
        recorder.samples("s", [], "ms")
    with pytest.raises(ValueError, match="raw rounds of 1"):
        recorder.samples("s", [1.0, 2.0], "ms", rounds=[[1.0]])
    with pytest.raises(ValueError, match="better='up'"):
        recorder.metric("m", 1, "1", better="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name and a unit"):
        recorder.metric("m", 1, "")
    with pytest.raises(ValueError, match="2 prompts and 1 finish"):
        recorder.tokens("t", [[1], [2]], ["stop"], rounds=1)
    with pytest.raises(ValueError, match="no int32"):
        recorder.tokens("t2", [[2**31]], ["stop"], rounds=1)
    with pytest.raises(ValueError, match="needs a reason"):
        recorder.unfit("")
