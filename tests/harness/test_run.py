"""``harness run`` on the fixture suites: every way a scope can end, and what is left on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from harness import files, process, progress, run, rundir
from harness.errors import HarnessError, UsageError
from harness.model import Origin, ScopeSummary
from tests.harness.conftest import Harness, harness_environment

PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def scope_json(project: Path, scope: str, run_dir: str = "R") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project / run_dir / scope / "scope.json").read_text())
    return loaded


def test_a_run_of_two_scopes(project: Path, harness: Harness) -> None:
    ran = harness("run", "green", "faults", "--run-dir", "R", env=PLAIN)
    assert ran.code == 1
    assert ran.last == "R"
    assert "green: 5 passed, 1 skipped" in ran.err
    assert "scope faults: 1 failed, 3 error" in ran.err
    record = scope_json(project, "green")
    assert record["argv"][1:5] == ["-m", "pytest", "suites/green", "-p"]
    assert (record["exit_code"], record["state"], record["problem"]) == (0, "finished", "")
    assert "5 passed, 1 skipped" in record["log_tail"][-1]
    names = {path.name for path in (project / "R" / "green").iterdir()}
    assert names - {"telemetry.jsonl"} == {"scope.json", "junit.xml", "records.jsonl", "log.txt", "environment.json"}


def test_a_crash_is_a_result_with_its_name(project: Path, harness: Harness) -> None:
    ran = harness("run", "faults", "--run-dir", "R", env={**PLAIN, "FIXTURE_FAULT": "crash"})
    assert ran.code == 1
    assert "pytest died of SIGSEGV while suites/faults/test_faults.py::test_open was open" in ran.err
    assert scope_json(project, "faults")["exit_code"] == -11
    assert not (project / "R" / "faults" / "junit.xml").exists()


def test_nothing_collected_is_an_error(project: Path, harness: Harness) -> None:
    ran = harness("run", "empty", "--run-dir", "R", env=PLAIN)
    assert ran.code == 3
    assert "scope empty: pytest collected no case (exit code 5)" in ran.err


def test_what_pytest_refuses_is_a_usage_error_and_is_run_again(project: Path, harness: Harness) -> None:
    ran = harness("run", "green", "--run-dir", "R", "--", "--no-such-option", env=PLAIN)
    assert ran.code == 2
    assert "pytest refused to run as asked (exit code 4): unrecognized arguments: --no-such-option" in ran.err
    sealed = harness("seal", "R", "--against", "none")
    assert sealed.code == 2
    assert "-m harness run green --resume --run-dir R" in sealed.err
    assert harness("run", "green", "--resume", "--run-dir", "R", env=PLAIN).code == 0
    assert scope_json(project, "green")["attempt"] == 2
    assert harness("seal", "R", "--against", "none").code == 0


def test_usage_errors_name_what_is_known(project: Path, harness: Harness) -> None:
    unknown = harness("run", "grene")
    assert unknown.code == 2
    assert "there is no scope grene in suites" in unknown.err
    assert "known are empty, faults, green, timed" in unknown.err
    assert harness("run", "green", "--no-such-option").code == 2
    bad_reason = harness("run", "green", "--not-run", "green")
    assert bad_reason.code == 2
    assert "give SCOPE=REASON" in bad_reason.err
    (project / "full").mkdir()
    (project / "full" / "file").touch()
    assert "has no run.json" in harness("run", "green", "--run-dir", "full").err
    assert "takes nothing after --" in harness("seal", "R", "--", "-k", "x").err
    which = harness("run", "green", "--resume")
    assert (which.code, "--resume does not say which run" in which.err) == (2, True)


def test_an_unfinished_scope_names_the_suites_folder_it_came_from(project: Path, harness: Harness) -> None:
    (project / "suites").rename(project / "cases")
    ran = harness("run", "green", "--suites", "cases", "--run-dir", "R", "--resume", env=PLAIN)
    assert "R holds no run yet: there is nothing to resume, every scope runs" in ran.err
    (project / "R" / "green" / "scope.json").unlink()
    again = f"finish it with: {sys.executable} -m harness run green --resume --run-dir R --suites cases\n"
    assert again in harness("seal", "R", "--suites", "cases", "--against", "none").err


def test_not_run_is_recorded_with_its_reason(project: Path, harness: Harness) -> None:
    ran = harness("run", "timed", "--not-run", "timed=no model data", "--run-dir", "R")
    assert ran.code == 0
    assert scope_json(project, "timed")["origin"] == {"kind": "not_run", "detail": "no model data"}
    sealed = harness("seal", "R", "--against", "none")
    assert sealed.code == 4
    assert "no model data" in sealed.out


def test_pytest_arguments_and_a_rerun_that_passes_is_flaky(project: Path, harness: Harness) -> None:
    (project / "suites" / "flaky").mkdir()
    (project / "suites" / "flaky" / "test_flaky.py").write_text(
        "import pathlib\nMARK = pathlib.Path('mark')\n"
        "def test_flaky():\n    seen = MARK.exists()\n    MARK.touch()\n    assert seen\n"
        "def test_steady():\n    pass\ndef test_other():\n    pass\n"
    )
    deselect = ("--", "--deselect", "suites/flaky/test_flaky.py::test_other")
    ran = harness("run", "flaky", "--rerun-failed", "2", "--run-dir", "R", *deselect, env=PLAIN)
    assert ran.code == 0, ran.err
    record = scope_json(project, "flaky")
    assert record["partial"] is True
    assert record["argv"][3] == "@R/flaky/only.txt"
    assert json.loads((project / "R/flaky/attempts/1/scope.json").read_text())["failed"] == [
        "suites/flaky/test_flaky.py::test_flaky"
    ]
    sealed = harness("seal", "R", "--against", "none")
    assert sealed.code == 1
    assert "FLAKY" in sealed.out
    comparison = next((project / "artifacts" / "bundles").iterdir()) / "data" / "comparison.json"
    rows = {row["node"].rpartition("::")[2]: row for row in json.loads(comparison.read_text())["comparison"]["cases"]}
    assert rows["test_flaky"]["reason"] == "failed at try 1, passed at try 2"
    assert rows["test_steady"]["outcome"] == "NEW"
    assert rows["test_other"]["reason"] == "deselected on the command line"


def start_hanging(project: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "harness", "run", "green", "faults", "--run-dir", "R"]
    argv += ["--lease", "none", "--suites", "suites"]
    environment = harness_environment({**PLAIN, "FIXTURE_FAULT": "hang"})
    child = subprocess.Popen(
        argv, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    records = project / "R" / "faults" / "records.jsonl"
    while not (records.exists() and "before_the_end" in records.read_text()):
        assert child.poll() is None, f"the case that hangs was never reached: {child.communicate()[1]}"
        time.sleep(0.05)
    return child


def test_ctrl_c_leaves_a_run_that_can_be_resumed(project: Path, harness: Harness) -> None:
    child = start_hanging(project)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130
    assert "scope faults was interrupted after 7 of 9 cases" in said
    again = "-m harness run green faults --run-dir R --lease none --suites suites --resume\n"
    assert f"go on with: {sys.executable} {again}" in said  # every option as it was given
    assert scope_json(project, "faults")["state"] == "interrupted"
    refused = harness("seal", "R", "--against", "none")
    assert refused.code == 3
    assert "unfinished" in refused.err
    assert "-m harness run faults --resume --run-dir R\n" in refused.err
    assert not list((project / "artifacts").rglob("*")) if (project / "artifacts").exists() else True
    resumed = harness("run", "green", "faults", "--resume", "--run-dir", "R", env=PLAIN)
    assert resumed.code == 1
    assert "(finished earlier)" in resumed.err
    assert scope_json(project, "faults")["attempt"] == 2
    assert harness("seal", "R", "--against", "none").code == 1


def test_killed_harness_keeps_the_folder_locked_while_its_pytest_lives(project: Path, harness: Harness) -> None:
    child = start_hanging(project)
    child.kill()
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    child.stderr.close()
    child.wait()
    refused = harness("run", "faults", "--resume", "--run-dir", "R", env=PLAIN)
    assert refused.code == 2
    assert "still works in R" in refused.err
    pid = next(json.loads(line)["pid"] for line in (project / "R/faults/records.jsonl").read_text().splitlines())
    os.kill(pid, signal.SIGKILL)
    while (resumed := harness("run", "faults", "--resume", "--run-dir", "R", env=PLAIN)).code == 2:
        assert "still works in R" in resumed.err
    assert resumed.code == 1
    assert (project / "R/faults/attempts/1/records.jsonl").exists()


# ---- parts, without a process ---------------------------------------------------------------------------------------


def test_a_limit_ends_a_scope(tmp_path: Path) -> None:
    """The child ignores SIGINT, leaves a grandchild behind, and is ended all the same."""
    script = "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    script += "subprocess.Popen(['sleep', '60']); time.sleep(60)"
    ticks: list[int] = []
    start = time.monotonic()
    old, process.GRACE_S = process.GRACE_S, 0.3
    try:
        ended = process.run_child(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            environment=os.environ,
            log=tmp_path / "log",
            timeout_s=1.0,
            keep_open=(),
            tick=lambda: ticks.append(1),
        )
    finally:
        process.GRACE_S = old
    assert ended.timed_out
    assert time.monotonic() - start < 20
    assert ticks
    assert process.exit_problem(ended, 1.0) == "pytest was ended after its limit of 1 s"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, ""),
        (1, ""),
        (2, "interrupted"),
        (3, "internal error"),
        (4, "refused to run as asked"),
        (5, "no case"),
        (-9, "SIGKILL"),
        (77, "77"),
    ],
)
def test_exit_problems(code: int, says: str) -> None:
    problem = process.exit_problem(process.Ended(code, 1.0), 10)
    assert (says in problem) if says else problem == ""


def test_progress_follows_workers_and_half_lines(tmp_path: Path) -> None:
    tail = progress.RecordTail(tmp_path, "s")
    assert tail.read().total == 0
    main, worker = tmp_path / "records.jsonl", tmp_path / "records.gw0.jsonl"
    main.write_text('{"kind": "scope_start"}\nnot json\n')
    with worker.open("w") as stream:
        stream.write('{"kind": "collected", "nodes": ["a", "b"]}\n{"kind": "case_start", "node": "a"}\n{"kind": "case_')
    state = tail.read()
    assert (state.total, state.done, state.open_cases) == (2, 0, ["a"])
    with worker.open("a") as stream:
        stream.write('end", "node": "a", "outcome": "failed"}\n')
    state = tail.read()
    assert (state.done, state.open_cases, state.failed) == (1, [], ["a"])


def test_worker_files_are_folded_in(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("1\n")
    (tmp_path / "records.gw1.jsonl").write_text("3\n")
    (tmp_path / "records.gw0.jsonl").write_text("2")
    run.merge_worker_records(tmp_path)
    assert (tmp_path / "records.jsonl").read_text() == "1\n2\n3\n"
    assert not list(tmp_path.glob("records.*.jsonl"))


def test_a_full_disk_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: types.SimpleNamespace(free=1 << 20))
    with pytest.raises(UsageError, match="has 1 MiB free") as caught:
        run.open_outputs(tmp_path)
    assert "another disk" in caught.value.hint


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    files.write_atomic(target, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HarnessError, match=r"cannot write .*file: No space left on device") as caught:
        files.write_atomic(target, b"new")
    assert "free some space" in caught.value.hint
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with (
        rundir.open_run(tmp_path / "R"),
        pytest.raises(UsageError, match="still works in"),
        rundir.open_run(tmp_path / "R"),
    ):
        pass
    with rundir.open_run(tmp_path / "R") as again:
        assert not again.finished("kernels")


def test_attempts_are_kept_in_order(tmp_path: Path) -> None:
    with rundir.open_run(tmp_path / "R") as opened:
        for number in (1, 2, 3):
            folder, attempt = opened.begin_attempt("kernels")
            assert attempt == number
            (folder / "log.txt").write_text(str(number))
    kept = tmp_path / "R" / "kernels" / "attempts"
    assert sorted((path.name, (path / "log.txt").read_text()) for path in kept.iterdir()) == [("1", "1"), ("2", "2")]


def test_a_scope_json_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scope.json").write_text('{"schema": 9}')
    with pytest.raises(HarnessError, match="schema 9, this harness reads 1"):
        rundir.read_scope_json(tmp_path)


def test_summary_of_a_scope_that_died_between_cases(tmp_path: Path) -> None:
    request = run.ScopeRun("s", Path(), Path())
    state = progress.ScopeProgress("s", 3, {"a": "passed"}, [])
    summary = run.summarise(request, tmp_path, process.Ended(-9, 1.0), state)
    assert summary == ScopeSummary("s", Origin(), -9, 1.0, {"passed": 1}, (), "pytest died of SIGKILL")
