"""``harness lease`` and ``harness doctor`` as a person types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.machine.lease import FOLDER_VARIABLE, TOKEN_VARIABLE
from harness.verdict import ExitCode
from tests.harness.conftest import REPOSITORY, call_harness, harness_environment


@pytest.fixture
def locks(tmp_path: Path) -> dict[str, str]:
    """Locks of this test alone, and no GPU."""
    return {FOLDER_VARIABLE: str(tmp_path / "locks"), TOKEN_VARIABLE: "", "CUDA_VISIBLE_DEVICES": ""}


def test_a_command_runs_under_the_lease(tmp_path: Path, locks: dict[str, str]) -> None:
    """And what it starts sees that the CPU is held, by whom."""
    listing = [sys.executable, "-m", "harness", "lease", "list"]
    ran = call_harness(REPOSITORY, "lease", "run", "--cpu", "--", *listing, env=locks)
    assert ran.code == ExitCode.OK, ran.err
    assert ran.out.startswith("cpu: process ")
    assert "harness lease list" in ran.out
    free = call_harness(REPOSITORY, "lease", "list", env=locks)
    assert (free.out, free.err) == ("", "nothing is held\n")


@pytest.mark.parametrize(
    ("program", "code"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_commands_end_is_ours(program: str, code: int, locks: dict[str, str]) -> None:
    assert (
        call_harness(REPOSITORY, "lease", "run", "--cpu", "--", sys.executable, "-c", program, env=locks).code == code
    )


def test_a_held_cpu_is_waited_for_and_then_refused(locks: dict[str, str]) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-m", "harness", "lease", "run", "--cpu", "--", sys.executable, "-uc", "print(1); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=harness_environment(locks),
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "1\n"
    refused = call_harness(REPOSITORY, "lease", "run", "--cpu", "--timeout", "0.5", "--", "true", env=locks)
    assert refused.code == ExitCode.USAGE
    assert "waiting for cpu, held by process" in refused.err
    assert "cpu is in use by process" in refused.err
    holder.communicate("\n")
    assert call_harness(REPOSITORY, "lease", "run", "--cpu", "--timeout", "5", "--", "true", env=locks).code == 0


def test_termination_reaches_the_command(locks: dict[str, str]) -> None:
    """A job that a scheduler ends must not leave its command behind with the lock."""
    program = "import time; print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "lease", "run", "--cpu", "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=harness_environment(locks),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    process.stdout.close()
    assert call_harness(REPOSITORY, "lease", "list", env=locks).out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run",), "nothing to run"),
        (("run", "--gpu", "all", "--", "true"), "no GPU is visible"),
        (("run", "--gpu", "0,1", "--", "true"), "not all of these are visible"),
        (("run", "--cpu", "--", "/no/such/command"), "cannot run /no/such/command"),
        (("list", "--", "true"), "takes nothing after --"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], text: str, locks: dict[str, str]) -> None:
    ran = call_harness(REPOSITORY, "lease", *arguments, env=locks)
    assert ran.code == ExitCode.USAGE
    assert text in ran.err


def test_a_lease_that_was_lost_is_no_success(tmp_path: Path, locks: dict[str, str]) -> None:
    """The command removes its own lock file: whatever it measured proves nothing."""
    program = "import os, pathlib; pathlib.Path(os.environ['HARNESS_LEASE_DIR'], 'cpu.lock').unlink()"
    ran = call_harness(REPOSITORY, "lease", "run", "--cpu", "--", sys.executable, "-c", program, env=locks)
    assert ran.code == ExitCode.EVIDENCE_BROKEN
    assert "the lease on cpu was lost" in ran.err


def test_the_doctor_looks_at_this_machine(locks: dict[str, str]) -> None:
    started = time.monotonic()
    ran = call_harness(REPOSITORY, "doctor", env=locks)
    assert ran.code == ExitCode.OK, ran.err
    names = {line[9:].split("  ")[0].strip() for line in ran.out.splitlines() if not line.startswith(" ")}
    assert {"neighbours", "steal", "memory", "disk", "leases"} <= names
    assert time.monotonic() - started < 60


def test_the_strict_doctor_fails_where_something_is_bad(tmp_path: Path, locks: dict[str, str]) -> None:
    """A neighbour of our own making, that is not of the doctor's family."""
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert call_harness(REPOSITORY, "doctor", "--strict", env=locks).code == ExitCode.REGRESSION
    finally:
        os.kill(spinner.pid, signal.SIGKILL)
        spinner.wait()
