"""What on this machine will spoil a measurement, and what to do about it. Reads, changes nothing.

Every check looks at one thing and says what it saw; what cannot be seen is ``UNKNOWN`` with the reason, never ``OK``.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.machine.cpu_counters import CpuReader, CpuSample, read_text
from harness.machine.gpu_counters import GpuReader, GpuSample
from harness.machine.gpu_processes import GpuProcess
from harness.machine.gpus import Gpu
from harness.machine.lease import Holder

LOOK_S = 1.0
DISK_LOW_GIB = 5.0
MEMORY_LOW_GIB = 2.0
OTHERS_BAD = 0.25
STEAL_BAD = 0.02
HOT_C = 80


class Health(StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``seen``: its state; ``do``: what helps (empty where nothing is wrong)."""

    name: str
    health: Health
    seen: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything the checks look at, gathered once (``look``); tests build it by hand or from another tree."""

    usable: int
    cpu: CpuSample
    busiest: tuple[str, ...]
    governor: str
    boost: str
    quota: float | None
    memory_gib: float | None
    swapping: bool
    disk_gib: float
    gpus: tuple[Gpu, ...]
    gpu_reason: str
    cards: tuple[GpuSample, ...]
    gpu_processes: tuple[GpuProcess, ...]
    gpu_processes_reason: str
    leases: dict[str, Holder | None]


def examine(machine: Machine) -> list[Finding]:
    """Every check on one machine, the CPU's first."""
    findings = [
        _neighbours(machine),
        _steal(machine),
        _governor(machine),
        _boost(machine),
        _quota(machine),
        _memory(machine),
        _disk(machine),
        _leases(machine),
    ]
    if not machine.gpus:
        return [*findings, Finding("gpu", Health.UNKNOWN, machine.gpu_reason or "none", "")]
    return [*findings, *_gpu_users(machine), *(found for gpu in machine.gpus for found in _card(machine, gpu))]


def worst(findings: Sequence[Finding]) -> Health:
    """The state of the machine as a whole; what is unknown is not bad."""
    states = {finding.health for finding in findings}
    return next((state for state in (Health.BAD, Health.WARN) if state in states), Health.OK)


def _neighbours(machine: Machine) -> Finding:
    others = machine.cpu.others
    if others is None:
        return Finding("neighbours", Health.UNKNOWN, "no /proc/stat: who uses the processors is not told")
    seen = f"other processes use {others:.2f} of {machine.usable} processors"
    if machine.busiest:
        seen += f"; busiest: {', '.join(machine.busiest)}"
    if others <= OTHERS_BAD:
        return Finding("neighbours", Health.OK, seen)
    return Finding("neighbours", Health.BAD, seen, "stop them, wait, or leave them processors with taskset")


def _steal(machine: Machine) -> Finding:
    steal = machine.cpu.steal
    if steal is None:
        return Finding("steal", Health.UNKNOWN, "not told")
    seen = f"{steal:.3f} processors' worth of time goes to other machines on this host"
    if steal <= STEAL_BAD:
        return Finding("steal", Health.OK, seen)
    return Finding("steal", Health.BAD, seen, "use more repeats, interleaved; or a host of your own")


def _governor(machine: Machine) -> Finding:
    if not machine.governor:
        return Finding("governor", Health.UNKNOWN, "no cpufreq here (a virtual machine, often)")
    if machine.governor == "performance":
        return Finding("governor", Health.OK, "performance")
    return Finding("governor", Health.WARN, machine.governor, "sudo cpupower frequency-set -g performance")


def _boost(machine: Machine) -> Finding:
    if not machine.boost:
        return Finding("turbo", Health.UNKNOWN, "not told")
    if machine.boost == "off":
        return Finding("turbo", Health.OK, "off")
    return Finding(
        "turbo",
        Health.WARN,
        "on: clocks depend on heat and on the other cores",
        "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo, or echo 0 to …/cpufreq/boost",
    )


def _quota(machine: Machine) -> Finding:
    if machine.quota is None:
        return Finding("cpu quota", Health.OK, "none")
    seen = f"{machine.quota:g} processors of {machine.usable}"
    if machine.quota >= machine.usable:
        return Finding("cpu quota", Health.OK, seen)
    return Finding(
        "cpu quota", Health.BAD, seen, "threads are stopped when it is used up: raise it, or use fewer threads"
    )


def _memory(machine: Machine) -> Finding:
    if machine.memory_gib is None:
        return Finding("memory", Health.UNKNOWN, "not told")
    seen = f"{machine.memory_gib:.1f} GiB available{', swapping' if machine.swapping else ''}"
    if machine.memory_gib >= MEMORY_LOW_GIB and not machine.swapping:
        return Finding("memory", Health.OK, seen)
    return Finding("memory", Health.BAD, seen, "end what you do not need; a page fault costs more than a round")


def _disk(machine: Machine) -> Finding:
    seen = f"{machine.disk_gib:.1f} GiB free for artifacts"
    if machine.disk_gib >= DISK_LOW_GIB:
        return Finding("disk", Health.OK, seen)
    return Finding("disk", Health.WARN, seen, "remove old runs: artifacts/runs, artifacts/bundles")


def _leases(machine: Machine) -> Finding:
    if not machine.leases:
        return Finding("leases", Health.OK, "none held")
    seen = "; ".join(f"{name} by {holder or 'an unknown process'}" for name, holder in machine.leases.items())
    return Finding("leases", Health.WARN, seen, "somebody measures: your work disturbs them, theirs disturbs you")


def _gpu_users(machine: Machine) -> list[Finding]:
    if machine.gpu_processes:
        seen = "; ".join(map(str, machine.gpu_processes))
        return [Finding("gpu processes", Health.BAD, seen, "wait, end them if yours, or set CUDA_VISIBLE_DEVICES")]
    if machine.gpu_processes_reason:
        return [Finding("gpu processes", Health.UNKNOWN, machine.gpu_processes_reason)]
    return [Finding("gpu processes", Health.OK, "none")]


def _card(machine: Machine, gpu: Gpu) -> list[Finding]:
    name = f"gpu {gpu.index}"
    findings = []
    if gpu.persistence == "off":
        do = "sudo nvidia-smi -pm 1, or every process pays for the driver's start"
        findings.append(Finding(f"{name} persistence", Health.WARN, "off", do))
    elif gpu.persistence == "on":
        findings.append(Finding(f"{name} persistence", Health.OK, "on"))
    if gpu.ecc:
        do = "" if gpu.ecc == "on" else "compare only with runs without it: it changes bandwidth and memory"
        findings.append(Finding(f"{name} ecc", Health.OK if gpu.ecc == "on" else Health.WARN, gpu.ecc, do))
    card = next((card for card in machine.cards if card.uuid == gpu.uuid), None)
    if card is None:
        return [*findings, Finding(f"{name} clocks", Health.UNKNOWN, "NVML does not tell")]
    seen = f"SM {card.sm_mhz} MHz, memory {card.memory_mhz} MHz, {card.power_w} W, {card.temperature_c} C"
    if card.throttle:
        do = "let it cool, raise the power cap, or lock a lower clock: sudo nvidia-smi -lgc CLOCK"
        findings.append(Finding(f"{name} clocks", Health.BAD, f"{seen}; held down: {', '.join(card.throttle)}", do))
    elif card.temperature_c is not None and card.temperature_c >= HOT_C:
        findings.append(Finding(f"{name} clocks", Health.WARN, seen, "let it cool before you measure"))
    else:
        findings.append(Finding(f"{name} clocks", Health.OK, seen))
    return findings


# ---- looking --------------------------------------------------------------------------------------------------------


def look(
    artifacts: Path,
    gpus: Sequence[Gpu],
    gpu_reason: str,
    users: tuple[Sequence[GpuProcess], str],
    leases: dict[str, Holder | None],
    *,
    proc: Path = Path("/proc"),
    sysfs: Path = Path("/sys"),
    sleep: Callable[[float], None] = time.sleep,
) -> Machine:
    """Gather what the checks need; takes ``LOOK_S`` seconds, since a rate needs two looks."""
    reader = CpuReader(os.getpid(), proc, sysfs)
    before, swapped = _process_ticks(proc), _swapped(proc)
    sleep(LOOK_S)
    cpu = reader.read()
    with GpuReader([gpu.uuid for gpu in gpus]) as cards:
        card_samples = cards.read()
    meminfo = dict(re.findall(r"^(\w+):\s+(\d+) kB$", read_text(proc / "meminfo"), re.MULTILINE))
    return Machine(
        usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu=cpu,
        busiest=_busiest(before, _process_ticks(proc)),
        governor=read_text(sysfs / "devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        boost=_boost_state(sysfs),
        quota=_cpu_quota(sysfs),
        memory_gib=int(meminfo["MemAvailable"]) / (1 << 20) if "MemAvailable" in meminfo else None,
        swapping=_swapped(proc) > swapped,
        disk_gib=shutil.disk_usage(_existing(artifacts)).free / (1 << 30),
        gpus=tuple(gpus),
        gpu_reason=gpu_reason,
        cards=card_samples,
        gpu_processes=tuple(users[0]),
        gpu_processes_reason=users[1],
        leases=leases,
    )


def _process_ticks(proc: Path) -> dict[tuple[int, str], int]:
    ticks = {}
    for folder in proc.glob("[0-9]*"):
        head, _, tail = read_text(folder / "stat").rpartition(")")
        fields = tail.split()
        if len(fields) > 12 and int(folder.name) != os.getpid():
            ticks[int(folder.name), head.partition("(")[2]] = int(fields[11]) + int(fields[12])
    return ticks


def _busiest(before: dict[tuple[int, str], int], now: dict[tuple[int, str], int], most: int = 3) -> tuple[str, ...]:
    used = {key: ticks - before[key] for key, ticks in now.items() if key in before and ticks > before[key]}
    top = sorted(used, key=lambda key: -used[key])[:most]
    hertz = os.sysconf("SC_CLK_TCK") * LOOK_S
    return tuple(f"{name} (process {pid}, {used[pid, name] / hertz:.0%})" for pid, name in top)


def _boost_state(sysfs: Path) -> str:
    no_turbo = read_text(sysfs / "devices/system/cpu/intel_pstate/no_turbo").strip()
    if no_turbo:
        return "off" if no_turbo == "1" else "on"
    boost = read_text(sysfs / "devices/system/cpu/cpufreq/boost").strip()
    return {"0": "off", "1": "on"}.get(boost, "")


def _cpu_quota(sysfs: Path) -> float | None:
    """Processors this control group may use, where it is limited (cgroup v2)."""
    quota, _, period = read_text(sysfs / "fs/cgroup/cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _swapped(proc: Path) -> int:
    pages = re.findall(r"^pswp(?:in|out) (\d+)$", read_text(proc / "vmstat"), re.MULTILINE)
    return sum(map(int, pages))


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())
