"""Which processes use a GPU now, as NVML or ``nvidia-smi`` tells it. A lease is refused over any of them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.machine.gpus import SMI_TIMEOUT_S, Gpu
from harness.machine.lease import LeaseError


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one card. ``memory_mib`` is 0 where it is not told."""

    gpu: str
    pid: int
    name: str
    memory_mib: int = 0

    def __str__(self) -> str:
        memory = f", {self.memory_mib} MiB" if self.memory_mib else ""
        return f"process {self.pid} ({self.name}{memory}) on {self.gpu}"


def refuse_foreign(gpus: Sequence[Gpu], own: frozenset[int] = frozenset()) -> str:
    """Raise ``LeaseError`` naming processes that use one of ``gpus`` and are none of ``own``.

    Returns what was found otherwise: ``none``, or why processes cannot be seen here (a container may hide them).
    """
    if not gpus:
        return "no GPU leased"
    processes, reason = gpu_processes(gpus)
    foreign = [process for process in processes if process.pid not in own]
    if foreign:
        raise LeaseError(
            f"busy: {'; '.join(map(str, foreign))}",
            "wait for it, end it if it is yours, or use other devices (CUDA_VISIBLE_DEVICES)",
        )
    return reason or "none"


def gpu_processes(gpus: Sequence[Gpu]) -> tuple[list[GpuProcess], str]:
    """Compute processes on ``gpus``; the second value says why they are not known, where they are not."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return _by_smi(gpus)
    try:
        return _by_nvml(nvml, gpus), ""
    except nvml.NVMLError as error:
        return [], f"not known: NVML: {error}"


def _by_nvml(nvml: Any, gpus: Sequence[Gpu]) -> list[GpuProcess]:
    nvml.nvmlInit()
    try:
        found = []
        for gpu in gpus:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                memory = int(process.usedGpuMemory or 0) >> 20
                found.append(GpuProcess(gpu.uuid, int(process.pid), process_name(int(process.pid)), memory))
        return found
    finally:
        nvml.nvmlShutdown()


def _by_smi(gpus: Sequence[Gpu]) -> tuple[list[GpuProcess], str]:
    if not shutil.which("nvidia-smi"):
        return [], "not known: neither NVML nor nvidia-smi is here"
    argv = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [], f"not known: nvidia-smi failed: {error}"
    return parse_smi(done.stdout, gpus)


def parse_smi(output: str, gpus: Sequence[Gpu]) -> tuple[list[GpuProcess], str]:
    """The rows of ``nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory`` that are about ``gpus``."""
    wanted = {gpu.uuid for gpu in gpus}
    found = []
    for row in output.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) != 4 or not fields[1].isdigit():
            return [], f"not known: nvidia-smi said {row!r}"
        uuid, pid, name, memory = fields
        if uuid in wanted:
            found.append(GpuProcess(uuid, int(pid), name, int(memory) if memory.isdigit() else 0))
    return found, ""


def process_name(pid: int, proc: Path = Path("/proc")) -> str:
    """The command of a process, or ``not visible here``: a container sees the GPU's processes by foreign numbers."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "not visible here"
