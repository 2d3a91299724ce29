"""The GPUs this process may use, as NVML or ``nvidia-smi`` names them, in the order CUDA would number them.

Standard library, plus NVML where it can be imported. CUDA itself is never initialised: looking must not take memory.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER_FILE = Path("/proc/driver/nvidia/version")
SMI_TIMEOUT_S = 20


@dataclass(frozen=True)
class Gpu:
    """One card. ``memory_mib`` is the total; ``ecc`` is ``on``, ``off`` or empty where it is not told."""

    index: int
    uuid: str
    name: str
    capability: tuple[int, int]
    memory_mib: int
    ecc: str = ""
    persistence: str = ""


def visible_gpus(environ: Mapping[str, str]) -> tuple[list[Gpu], dict[str, str]]:
    """The GPUs left by ``CUDA_VISIBLE_DEVICES``, and facts about them and the driver (or why there are none)."""
    gpus, facts = _all_gpus()
    chosen = choose(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if chosen:
        facts |= {
            "gpu.count": str(len(chosen)),
            "gpu.names": ", ".join(gpu.name for gpu in chosen),
            "gpu.uuids": ", ".join(gpu.uuid for gpu in chosen),
            "gpu.capability": ", ".join(f"{gpu.capability[0]}.{gpu.capability[1]}" for gpu in chosen),
            "gpu.memory_mib": ", ".join(str(gpu.memory_mib) for gpu in chosen),
            "gpu.ecc": ", ".join(gpu.ecc or "unknown" for gpu in chosen),
            "gpu.persistence": ", ".join(gpu.persistence or "unknown" for gpu in chosen),
        }
    elif gpus:
        facts["gpu.reason"] = f"CUDA_VISIBLE_DEVICES hides all {len(gpus)} GPUs"
    return chosen, facts


def choose(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does: indices or UUID prefixes, up to the first that names nothing."""
    if visible is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        found = [
            gpu
            for gpu in gpus
            if (entry.isdigit() and gpu.index == int(entry)) or (entry and gpu.uuid.startswith(entry))
        ]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen.append(found[0])
    return chosen


def _all_gpus() -> tuple[list[Gpu], dict[str, str]]:
    driver_loaded = DRIVER_FILE.exists()
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        nvml_reason = "nvidia-ml-py is not installed"
    else:
        try:
            return _by_nvml(nvml)
        except nvml.NVMLError as error:
            nvml_reason = f"NVML: {error}"
    if driver_loaded and shutil.which("nvidia-smi"):
        return _by_smi()
    if driver_loaded:
        return [], {"gpu.reason": f"a driver is loaded, but {nvml_reason} and nvidia-smi is not on the path"}
    return [], {"gpu.reason": "no NVIDIA driver on this machine"}


def _by_nvml(nvml: Any) -> tuple[list[Gpu], dict[str, str]]:
    nvml.nvmlInit()
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        facts = {
            "gpu.driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "gpu.cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        return [_nvml_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())], facts
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def optional(query: str) -> str:
        try:
            value = getattr(nvml, query)(handle)
        except nvml.NVMLError:  # not every card has ECC or a persistence mode
            return ""
        first = value[0] if isinstance(value, (list, tuple)) else value
        return "on" if first else "off"

    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        (int(major), int(minor)),
        int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
        optional("nvmlDeviceGetEccMode"),
        optional("nvmlDeviceGetPersistenceMode"),
    )


def _by_smi() -> tuple[list[Gpu], dict[str, str]]:
    query = "index,uuid,name,compute_cap,memory.total,driver_version"
    argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [], {"gpu.reason": f"a driver is loaded, but nvidia-smi failed: {error}"}
    return parse_smi(done.stdout)


def parse_smi(output: str) -> tuple[list[Gpu], dict[str, str]]:
    """The rows of ``nvidia-smi --query-gpu=index,uuid,name,compute_cap,memory.total,driver_version`` as records."""
    gpus, driver = [], ""
    for row in output.splitlines():
        fields = [field.strip() for field in row.split(",")]
        if len(fields) != 6:
            return [], {"gpu.reason": f"a driver is loaded, but nvidia-smi said {row!r}"}
        index, uuid, name, capability, memory, driver = fields
        major, _, minor = capability.partition(".")
        gpus.append(Gpu(int(index), uuid, name, (int(major), int(minor or 0)), int(memory)))
    return gpus, {"gpu.driver": driver} if driver else {}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
