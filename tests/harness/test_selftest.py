"""The selftest, run: every planted fault gives its exit code. And it fails when the gate cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.selftest import Result, _Selftest, selftest
from harness.verdict import ExitCode
from tests.harness.conftest import call_here


def test_every_fault_gives_its_exit_code(tmp_path: Path) -> None:
    done = call_here(tmp_path, "selftest")
    assert done.code == 0, done.out
    assert done.out.splitlines()[-1] == "17 of 17 faults gave the exit code they must"


def test_a_gate_that_cannot_fail_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a gate that always says 0, the selftest must not be green."""
    probe = _Selftest(lambda *_: (0, "NO REGRESSION\nnothing found"), tmp_path, lambda _: None)
    probe.expect("times 20 % longer", ExitCode.REGRESSION, ["seal", "run"])
    assert probe.results == [Result("times 20 % longer", ExitCode.REGRESSION, 0, "nothing found")]
    assert not probe.results[0].ok
    monkeypatch.setattr("harness.selftest.selftest", lambda *_: probe.results)
    done = call_here(tmp_path, "selftest")
    assert done.code == 1
    assert "0 of 1 faults" in done.out


def test_a_folder_to_keep_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not empty"):
        selftest(lambda *_: (0, ""), tmp_path, lambda _: None)
