"""Leases: exclusive, waiting with an end, gone with their holder, and honest about being lost."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HarnessError, UsageError
from harness.machine.gpu_processes import parse_smi, process_name, refuse_foreign
from harness.machine.gpus import Gpu
from harness.machine.lease import (
    CPU,
    Holder,
    Lease,
    LeaseError,
    LeaseLost,
    acquire,
    gpu_resource,
    held,
    lease_folder,
    read_holder,
    worker_device,
)
from harness.verdict import ExitCode
from tests.harness.conftest import REPOSITORY, harness_environment

GPU = "gpu-3f2a"
GPUS = [Gpu(0, "GPU-aa", "Tesla V100", (7, 0), 32768), Gpu(1, "GPU-bb", "Tesla V100", (7, 0), 32768)]


def take(folder: Path, *resources: str, **options: Any) -> Lease:
    return acquire(resources or (CPU,), folder=folder, command="test", environ={}, **{"timeout_s": 0.0, **options})


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another process that takes a lease, says ``held`` and sleeps; ended after the test."""
    started: list[subprocess.Popen[str]] = []
    program = (
        "import os, sys, time, subprocess\n"
        "from pathlib import Path\n"
        "from harness.machine.lease import acquire\n"
        "lease = acquire(sys.argv[2].split(','), folder=Path(sys.argv[1]), command='the other one', environ=os.environ,"
        " timeout_s=30)\n"
        "if sys.argv[3] == 'child':\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=tuple(lease.descriptors.values()))\n"
        "    print(child.pid, flush=True)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )

    def start(*resources: str, mode: str = "alone") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), ",".join(resources or (CPU,)), mode],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=harness_environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _until_held(process: subprocess.Popen[str]) -> list[str]:
    """The lines the other process prints up to ``held``."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "held":
        line = process.stdout.readline()
        assert line, "the other process ended before it held its lease"
        lines.append(line.strip())
    return lines


def test_a_lease_is_exclusive_and_names_its_holder(tmp_path: Path, elsewhere: Any) -> None:
    other = elsewhere(CPU)
    _until_held(other)
    with pytest.raises(LeaseError, match=rf"cpu is in use by process {other.pid} \(the other one\) since") as raised:
        take(tmp_path)
    assert raised.value.code is ExitCode.USAGE
    assert "--lease-timeout" in raised.value.hint


def test_it_dies_with_its_holder(tmp_path: Path, elsewhere: Any) -> None:
    """SIGKILL leaves no time to clean up; the kernel does it."""
    other = elsewhere(CPU)
    _until_held(other)
    other.kill()
    other.wait()
    with take(tmp_path, timeout_s=5.0) as lease:
        assert lease.record.counts == (2,)


def test_a_child_that_inherited_the_lock_keeps_it(tmp_path: Path, elsewhere: Any) -> None:
    """Killing the harness must not free a GPU that its pytest still uses."""
    other = elsewhere(CPU, mode="child")
    child = int(_until_held(other)[0])
    other.kill()
    other.wait()
    with pytest.raises(LeaseError):
        take(tmp_path)
    os.kill(child, signal.SIGKILL)
    with take(tmp_path, timeout_s=5.0):
        pass


def test_waiting_ends_when_the_holder_goes(tmp_path: Path, elsewhere: Any) -> None:
    """And meanwhile the caller is told whom it waits for."""
    other = elsewhere(CPU)
    _until_held(other)
    told: list[tuple[str, Holder | None]] = []

    def waiting(resource: str, holder: Holder | None, waited: float) -> None:
        told.append((resource, holder))
        if len(told) == 2:
            other.kill()

    with take(tmp_path, timeout_s=20.0, waiting=waiting) as lease:
        assert lease.record.waited_s > 0
    assert told[0][0] == CPU
    assert told[0][1] is not None
    assert told[0][1].pid == other.pid


def test_the_wait_is_bounded(tmp_path: Path) -> None:
    """With a clock of our own: it gives up at its limit, not a poll later."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with take(tmp_path), pytest.raises(LeaseError, match="waited 3 s"):
        take(tmp_path, timeout_s=3.0, clock=lambda: now[0], sleep=sleep)
    assert now[0] == pytest.approx(3.0)


def test_all_or_nothing(tmp_path: Path) -> None:
    """The second lock is refused, so the first is given back."""
    with take(tmp_path, "gpu-b"):
        with pytest.raises(LeaseError, match="gpu-b"):
            take(tmp_path, "gpu-a", "gpu-b")
        with take(tmp_path, "gpu-a"):
            assert set(held(tmp_path)) == {"gpu-a", "gpu-b"}
    assert held(tmp_path) == {}


def test_one_order_for_everybody(tmp_path: Path) -> None:
    """Two who ask for the same pair in opposite order both get it, one after the other: no deadlock."""
    with take(tmp_path, "gpu-b", "gpu-a") as lease:
        assert lease.record.resources == ("gpu-a", "gpu-b")


def test_foreign_processes_give_everything_back(tmp_path: Path) -> None:
    def foreign() -> str:
        raise LeaseError("busy: process 42 (trainer) on GPU-aa")

    with pytest.raises(LeaseError, match="42"):
        take(tmp_path, GPU, foreign=foreign)
    assert held(tmp_path) == {}


def test_takers_are_numbered(tmp_path: Path) -> None:
    """Consecutive numbers prove that nobody was in between."""
    counts = []
    for _ in range(3):
        with take(tmp_path) as lease:
            counts.append(lease.record.counts)
    assert counts == [(1,), (2,), (3,)]


def test_release_early_is_seen(tmp_path: Path) -> None:
    """A lease that was given back while it was still needed: somebody else's name stands in the lock now."""
    lease = take(tmp_path)
    lease.check()
    lease.release()
    with take(tmp_path), pytest.raises(LeaseLost, match="cpu was lost"):
        lease.check()


def test_a_removed_lock_file_is_seen(tmp_path: Path) -> None:
    with take(tmp_path) as lease:
        (tmp_path / "cpu.lock").unlink()
        with pytest.raises(LeaseLost, match="nobody") as raised:
            lease.check()
    assert raised.value.code is ExitCode.EVIDENCE_BROKEN


def test_a_replaced_lock_file_is_seen(tmp_path: Path) -> None:
    """Same content, another file: a lock on the old one excludes nobody."""
    with take(tmp_path) as lease:
        path = tmp_path / "cpu.lock"
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        with pytest.raises(LeaseLost, match="another file"):
            lease.check()


def test_a_file_replaced_between_opening_and_locking_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "cpu.lock", fcntl.flock
    replaced: list[Path] = []

    def replace_once(descriptor: int, how: int) -> None:
        if not replaced:
            path.unlink()
            path.touch()
            replaced.append(path)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", replace_once)
    with take(tmp_path) as lease:
        lease.check()
        assert os.path.samestat(os.fstat(lease.descriptors["cpu"]), path.stat())


def test_a_child_counts_as_part_of_the_lease(tmp_path: Path) -> None:
    """`harness lease run -- harness run ...` must not wait for itself."""
    with take(tmp_path, CPU, GPU) as outer:
        environ = outer.environment()
        inner = acquire([CPU], folder=lease_folder(environ), command="inner", environ=environ, timeout_s=0.0)
        assert inner.record.inherited
        inner.check()
        inner.release()
        assert set(held(tmp_path)) == {CPU, GPU}


def test_a_child_that_wants_more_is_told(tmp_path: Path) -> None:
    with take(tmp_path, CPU) as outer, pytest.raises(LeaseError, match=f"does not cover {GPU}"):
        acquire([CPU, GPU], folder=tmp_path, command="inner", environ=outer.environment(), timeout_s=0.0)


def test_a_token_of_a_lease_that_ended_is_worth_nothing(tmp_path: Path) -> None:
    outer = take(tmp_path)
    environ = outer.environment()
    outer.release()
    with acquire([CPU], folder=tmp_path, command="inner", environ=environ, timeout_s=0.0) as own:
        assert not own.record.inherited


def test_a_link_is_refused(tmp_path: Path) -> None:
    """In a folder that everybody may write, a link would let another user point our lock anywhere."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / "cpu.lock").symlink_to(tmp_path / "target")
    with pytest.raises(HarnessError):
        take(tmp_path)
    assert (tmp_path / "target").read_text() == "precious"


def test_garbage_in_a_lock_is_survived(tmp_path: Path) -> None:
    (tmp_path / "cpu.lock").write_text("{not json")
    assert read_holder(tmp_path / "cpu.lock") is None
    with take(tmp_path) as lease:
        lease.check()


def test_a_lease_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a lease of nothing"):
        acquire([], folder=tmp_path, command="test", environ={})


def test_the_record_says_what_was_leased(tmp_path: Path) -> None:
    lease = acquire(
        [GPU], folder=tmp_path, command="test", environ={"CUDA_VISIBLE_DEVICES": "4,5"}, foreign=lambda: "none"
    )
    with lease:
        record = lease.record.json()
    assert (record["resources"], record["visible_devices"], record["foreign"]) == ((GPU,), "4,5", "none")
    assert record["schema"] == 1


def test_gpus_are_leased_by_uuid() -> None:
    assert gpu_resource("GPU-3F2A") == gpu_resource("3f2a") == "gpu-3f2a"


@pytest.mark.parametrize(
    ("worker", "visible", "device"),
    [
        ("gw0", ["4", "5", "6", "7"], "4"),
        ("gw3", ["4", "5", "6", "7"], "7"),
        ("gw4", ["4", "5", "6", "7"], "4"),
        ("gw1", ["GPU-aa", "GPU-bb"], "GPU-bb"),
        ("gw12", ["2"], "2"),
    ],
)
def test_workers_get_the_callers_own_devices(worker: str, visible: list[str], device: str) -> None:
    """Worker 0 of a call that may use GPUs 4 to 7 gets GPU 4, not GPU 0 of the machine."""
    assert worker_device(worker, visible) == device


@pytest.mark.parametrize(("worker", "visible"), [("master", ["0"]), ("gw", ["0"]), ("gw0", [])])
def test_no_worker_or_no_device(worker: str, visible: list[str]) -> None:
    with pytest.raises(ValueError, match="worker"):
        worker_device(worker, visible)


# ---- processes on the GPUs ------------------------------------------------------------------------------------------


def test_smi_rows_about_our_gpus() -> None:
    output = "GPU-aa, 42, python, 1024\nGPU-zz, 43, python, 1\nGPU-bb, 44, [Not Found], [N/A]\n"
    found, reason = parse_smi(output, GPUS)
    assert reason == ""
    assert [(process.pid, process.name, process.memory_mib) for process in found] == [
        (42, "python", 1024),
        (44, "[Not Found]", 0),
    ]


def test_smi_that_says_something_else() -> None:
    assert parse_smi("No running processes found", GPUS) == (
        [],
        "not known: nvidia-smi said 'No running processes found'",
    )


def test_a_busy_gpu_is_refused_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = parse_smi("GPU-aa, 42, trainer, 1024\n", GPUS)
    monkeypatch.setattr("harness.machine.gpu_processes.gpu_processes", lambda gpus: (found, ""))
    with pytest.raises(LeaseError, match=r"process 42 \(trainer, 1024 MiB\) on GPU-aa"):
        refuse_foreign(GPUS)
    assert refuse_foreign(GPUS, frozenset({42})) == "none"


def test_processes_that_cannot_be_seen_are_not_claimed_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.machine.gpu_processes.gpu_processes", lambda gpus: ([], "not known: a reason"))
    assert refuse_foreign(GPUS) == "not known: a reason"


def test_names_of_processes() -> None:
    assert process_name(os.getpid())
    assert process_name(2**30) == "not visible here"


def test_no_wait_is_a_busy_loop(tmp_path: Path) -> None:
    """Half a second of waiting costs little of it as CPU time."""
    with take(tmp_path):
        before = time.process_time()
        with pytest.raises(LeaseError):
            take(tmp_path, timeout_s=0.5)
        assert time.process_time() - before < 0.25
