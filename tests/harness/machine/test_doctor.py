"""The doctor: each thing that spoils a measurement is named with what helps, and the unknown is not called fine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.machine.cpu_counters import CpuSample
from harness.machine.doctor import Finding, Health, Machine, examine, look, worst
from harness.machine.gpu_counters import GpuSample
from harness.machine.gpu_processes import GpuProcess
from harness.machine.gpus import Gpu
from harness.machine.lease import Holder

GPU = Gpu(0, "GPU-aa", "Tesla V100-SXM2-32GB", (7, 0), 32768, "on", "on")
CARD = GpuSample("GPU-aa", 1530, 877, 60.0, 45, 0, 0, ())
CALM = Machine(
    usable=2,
    cpu=CpuSample(2400.0, 0.1, 0.0, 0.05, 0.0, 100.0, 0.0, 0.0),
    busiest=(),
    governor="performance",
    boost="off",
    quota=None,
    memory_gib=20.0,
    swapping=False,
    disk_gib=50.0,
    gpus=(GPU,),
    gpu_reason="",
    cards=(CARD,),
    gpu_processes=(),
    gpu_processes_reason="",
    leases={},
)


def finding(machine: Machine, name: str) -> Finding:
    return next(found for found in examine(machine) if found.name == name)


def test_a_calm_machine_is_fine() -> None:
    findings = examine(CALM)
    assert worst(findings) is Health.OK
    assert {found.health for found in findings} == {Health.OK}
    assert all(not found.do for found in findings)


def _cpu(**values: float | None) -> Machine:
    return replace(CALM, cpu=replace(CALM.cpu, **values))


@pytest.mark.parametrize(
    ("name", "machine", "health", "seen"),
    [
        ("neighbours", _cpu(others=1.9), Health.BAD, "1.90 of 2 processors"),
        ("neighbours", _cpu(others=None), Health.UNKNOWN, "not told"),
        ("steal", _cpu(steal=0.1), Health.BAD, "0.100"),
        ("steal", _cpu(steal=None), Health.UNKNOWN, "not told"),
        ("governor", replace(CALM, governor="powersave"), Health.WARN, "powersave"),
        ("governor", replace(CALM, governor=""), Health.UNKNOWN, "no cpufreq"),
        ("turbo", replace(CALM, boost="on"), Health.WARN, "on"),
        ("turbo", replace(CALM, boost=""), Health.UNKNOWN, "not told"),
        ("cpu quota", replace(CALM, quota=1.5), Health.BAD, "1.5 processors of 2"),
        ("cpu quota", replace(CALM, quota=2.0), Health.OK, "2 processors of 2"),
        ("memory", replace(CALM, memory_gib=1.0), Health.BAD, "1.0 GiB"),
        ("memory", replace(CALM, swapping=True), Health.BAD, "swapping"),
        ("memory", replace(CALM, memory_gib=None), Health.UNKNOWN, "not told"),
        ("disk", replace(CALM, disk_gib=1.0), Health.WARN, "1.0 GiB"),
        ("leases", replace(CALM, leases={"cpu": Holder(9, "nox", "t", "x", 3)}), Health.WARN, "cpu by process 9"),
        ("leases", replace(CALM, leases={"cpu": None}), Health.WARN, "unknown process"),
        ("gpu", replace(CALM, gpus=(), gpu_reason="no driver"), Health.UNKNOWN, "no driver"),
        (
            "gpu processes",
            replace(CALM, gpu_processes=(GpuProcess("GPU-aa", 42, "trainer", 512),)),
            Health.BAD,
            "process 42 (trainer, 512 MiB)",
        ),
        ("gpu processes", replace(CALM, gpu_processes_reason="not known: x"), Health.UNKNOWN, "not known"),
        ("gpu 0 persistence", replace(CALM, gpus=(replace(GPU, persistence="off"),)), Health.WARN, "off"),
        ("gpu 0 ecc", replace(CALM, gpus=(replace(GPU, ecc="off"),)), Health.WARN, "off"),
        ("gpu 0 clocks", replace(CALM, cards=(replace(CARD, throttle=("power cap",)),)), Health.BAD, "power cap"),
        ("gpu 0 clocks", replace(CALM, cards=(replace(CARD, temperature_c=80),)), Health.WARN, "80 C"),
        ("gpu 0 clocks", replace(CALM, cards=()), Health.UNKNOWN, "NVML"),
    ],
)
def test_each_thing_that_spoils(name: str, machine: Machine, health: Health, seen: str) -> None:
    found = finding(machine, name)
    assert found.health is health
    assert seen in found.seen
    assert bool(found.do) is (health in (Health.WARN, Health.BAD)), found


def test_the_worst_counts() -> None:
    assert worst(examine(_cpu(others=1.9))) is Health.BAD
    assert worst(examine(replace(CALM, boost="on"))) is Health.WARN
    assert worst(examine(replace(CALM, governor=""))) is Health.OK


def test_looking_at_another_tree(tmp_path: Path) -> None:
    """Everything read from files, on a machine that is not this one."""
    files = {
        "proc/stat": "cpu  0 0 0 0 0 0 0 0 0 0\nctxt 1\n",
        "proc/loadavg": "0.5 0.5 0.5 1/1 1",
        "proc/meminfo": "MemTotal:  100 kB\nMemAvailable:  3145728 kB\n",
        "proc/vmstat": "pswpin 0\npswpout 0\n",
        "proc/77/stat": f"77 (busy one) R {' '.join(['0'] * 10)} 0 0 0 0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def later(seconds: float) -> None:
        (tmp_path / "proc/77/stat").write_text(f"77 (busy one) R {' '.join(['0'] * 10)} 50 40 0 0\n")
        (tmp_path / "proc/vmstat").write_text("pswpin 3\npswpout 0\n")

    machine = look(
        tmp_path / "artifacts" / "not yet",
        [],
        "no NVIDIA driver on this machine",
        ([], ""),
        {},
        proc=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        sleep=later,
    )
    assert machine.busiest == ("busy one (process 77, 90%)",)
    assert (machine.governor, machine.boost, machine.quota) == ("powersave", "on", 1.5)
    assert (machine.memory_gib, machine.swapping) == (3.0, True)
    assert machine.disk_gib > 0


@pytest.mark.parametrize(("text", "state"), [("1", "on"), ("0", "off")])
def test_boost_of_another_driver(tmp_path: Path, text: str, state: str) -> None:
    folder = tmp_path / "devices/system/cpu/cpufreq"
    folder.mkdir(parents=True)
    (folder / "boost").write_text(text)
    machine = look(tmp_path, [], "", ([], ""), {}, proc=tmp_path, sysfs=tmp_path, sleep=lambda seconds: None)
    assert machine.boost == state
