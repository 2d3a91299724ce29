"""A run holds what it measures on, watches the machine meanwhile, and the doubts reach the evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.machine.cpu_counters import CpuSample
from harness.machine.gpus import Gpu
from harness.machine.lease import CPU, FOLDER_VARIABLE, Lease, acquire
from harness.machine.observe import LEASE_FILE, TELEMETRY_FILE, Watch, machine_doubts, machine_notes, wanted_resources
from harness.machine.telemetry import read_samples
from tests.harness.conftest import REPOSITORY, Harness, harness_environment

GPU = Gpu(0, "GPU-aa", "Tesla V100", (7, 0), 32768)


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    with acquire([CPU], folder=tmp_path / "locks", command="test", environ={}) as held:
        yield held


def test_the_scope_keeps_lease_and_telemetry(tmp_path: Path, lease: Lease) -> None:
    folder = tmp_path / "scope"
    folder.mkdir()
    with Watch(lease).over(folder):
        pass
    assert json.loads((folder / LEASE_FILE).read_text())["resources"] == [CPU]
    assert (folder / TELEMETRY_FILE).exists()


def test_a_lost_lease_is_a_problem(tmp_path: Path, lease: Lease) -> None:
    watch = Watch(lease)
    assert watch.lost() == ""
    (tmp_path / "locks" / "cpu.lock").unlink()
    assert "the lease on cpu was lost" in watch.lost()
    assert Watch().lost() == ""


def test_what_scopes_lease() -> None:
    assert wanted_resources(["kernels"], []) == ([], False)
    assert wanted_resources(["kernels", "latency"], []) == ([], True)
    assert wanted_resources(["kernels", "latency"], [GPU]) == ([GPU], False)


def _telemetry(folder: Path, *, others: float) -> None:
    cpu = CpuSample(2400.0, 0.1, 1.0, others, 0.0, 100.0, 0.0, 0.0)
    line = {"at": 1.0, "cpu": {name: getattr(cpu, name) for name in cpu.__slots__}, "gpus": [], "schema": 1}
    (folder / TELEMETRY_FILE).write_text(json.dumps(line) + "\n")


def test_doubts_about_times(tmp_path: Path, lease: Lease) -> None:
    assert machine_notes(tmp_path, timed=False) == []
    assert machine_notes(tmp_path, timed=True) == [
        "its times were taken without a lease: nothing kept others off the machine",
        "the machine was not watched meanwhile (no telemetry)",
    ]
    (tmp_path / LEASE_FILE).write_text(json.dumps(lease.record.json()))
    assert machine_doubts(tmp_path, timed=True) == ()
    _telemetry(tmp_path, others=0.1)
    assert machine_notes(tmp_path, timed=True) == []
    assert machine_doubts(tmp_path, timed=True) == ()
    _telemetry(tmp_path, others=0.9)
    busy = "while it ran, 0.90 processors' worth of time went to other processes"
    assert machine_doubts(tmp_path, timed=True) == machine_doubts(tmp_path, timed=True, processors=1) == (busy,)
    assert machine_doubts(tmp_path, timed=True, processors=2) == ()  # of which one at most was used
    assert machine_doubts(tmp_path, timed=False) == ()
    (tmp_path / LEASE_FILE).write_text(json.dumps(replace(lease.record, foreign="not known: a reason").json()))
    assert machine_notes(tmp_path, timed=True)[0] == "other processes on its GPUs could not be seen"


def test_a_run_records_them(project: Path, harness: Harness) -> None:
    """A scope called latency takes the CPU; the locks are the test's own."""
    locks = project.parent / "locks"
    (project / "suites" / "green").rename(project / "suites" / "latency")
    ran = harness("run", "latency", env={FOLDER_VARIABLE: str(locks), "CUDA_VISIBLE_DEVICES": ""})
    assert ran.code == 0, ran.err
    folder = project / ran.last / "latency"
    record = json.loads((folder / LEASE_FILE).read_text())
    assert (record["resources"], record["inherited"]) == ([CPU], False)
    assert read_samples(folder / TELEMETRY_FILE) is not None
    stamps = [json.loads(line)["at"] for line in (folder / "records.jsonl").read_text().splitlines()]
    assert stamps == sorted(stamps)


def test_a_run_waits_for_its_lease_no_longer_than_told(project: Path, harness: Harness) -> None:
    locks = {FOLDER_VARIABLE: str(project.parent / "locks"), "CUDA_VISIBLE_DEVICES": ""}
    (project / "suites" / "green").rename(project / "suites" / "latency")
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
    refused = harness("run", "latency", "--lease-timeout", "0.3", env=locks)
    without = harness("run", "latency", "--lease", "none", env=locks)
    holder.communicate("\n")
    assert refused.code == 2
    assert "cpu is in use by process" in refused.err
    assert without.code == 0, without.err
    assert not (project / without.last / "latency" / LEASE_FILE).exists()
