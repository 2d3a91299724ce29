"""Looks at the machine: a flat map of allow-listed facts, and the device key they amount to.

Standard library, plus NVML and GitPython where they can be imported. What cannot be known is left out, with the reason
under ``<topic>.reason``; nothing is guessed. No host name, user name or unlisted variable is ever read.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from harness.comparability import JITTER
from harness.files import json_bytes, sha256_file, write_atomic
from harness.machine.gitstate import git_facts
from harness.machine.gpus import Gpu, visible_gpus

# Variables that change numbers or clocks. Anything else, secrets included, never enters a file.
ALLOWED_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_FORCE_PTX_JIT",
        "CUBLAS_WORKSPACE_CONFIG",
        "NVIDIA_TF32_OVERRIDE",
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_P2P_DISABLE",
        "OMP_NUM_THREADS",
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "KMP_AFFINITY",
        "PYTHONHASHSEED",
        "PYTHONDEVMODE",
        "PYTHONOPTIMIZE",
        "PYTHONMALLOC",
        "PYTHONUNBUFFERED",
        "PYTEST_ADDOPTS",
        "PYTEST_PLUGINS",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "LD_PRELOAD",
        "MALLOC_ARENA_MAX",
        "CI",
    }
)
ALLOWED_PREFIXES = ("VLLM_SM70_", "VLLM_FLASH_V100_", "SM70_")
VALUE_LIMIT = 400
PACKAGES = ("torch", "numpy", "pytest", "pytest-xdist", "tokenizers", "gguf", "safetensors", "triton", "nvidia-ml-py")
# Flags by which kernels choose a path; the full list of 100 names would only hide them.
CPU_FLAGS = frozenset({"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "asimd", "sve"})


def same_machine_facts(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether two environments agree in everything but jitter."""
    return {k: v for k, v in one.items() if k not in JITTER} == {k: v for k, v in other.items() if k not in JITTER}


def write_environment(path: Path, root: Path) -> dict[str, str]:
    """Look and write ``path``; gives the map."""
    facts = look(root)
    write_atomic(path, json_bytes(facts))
    return facts


def look(root: Path) -> dict[str, str]:
    """All facts about this machine, this interpreter and the work tree at ``root``."""
    gpus, gpu_facts = visible_gpus(os.environ)
    facts = {
        "device_key": device_key(gpus, gpu_facts.get("gpu.reason", "")),
        **cpu_facts(),
        **gpu_facts,
        **python_facts(),
        **variables(os.environ),
        **native_facts(root),
        **git_facts(root),
    }
    return dict(sorted(facts.items()))


def device_key(gpus: list[Gpu], reason: str) -> str:
    """The name of what changes numbers or clocks: ``cpu-x86-64``, ``sm70-v100sxm2-32g-x4``, ``sm90-h200-ptx70-x1``."""
    machine = platform.machine().lower()
    machine = {"amd64": "x86-64", "x86_64": "x86-64", "arm64": "aarch64"}.get(machine, machine)
    if not gpus:
        return f"unknown-gpu-{machine}" if reason.startswith("a driver is loaded") else f"cpu-{machine}"
    names = sorted({gpu_slug(gpu) for gpu in gpus})
    return f"{'+'.join(names)}-x{len(gpus)}"


def gpu_slug(gpu: Gpu) -> str:
    """``sm70-v100sxm2-32g`` from capability and marketing name; other chips run our compute_70 PTX and say so."""
    words = re.sub(r"[^a-z0-9]+", " ", gpu.name.lower()).split()
    words = [word for word in words if word not in ("nvidia", "tesla", "geforce", "quadro", "graphics", "gpu")]
    memory = [f"{match[1]}g" for word in words if (match := re.fullmatch(r"(\d+)gb", word))]
    chip = "".join(word for word in words if not re.fullmatch(r"\d+gb", word)) or "unnamed"
    ptx = [] if gpu.capability == (7, 0) else ["ptx70"]
    return "-".join([f"sm{gpu.capability[0]}{gpu.capability[1]}", chip, *memory, *ptx])


def cpu_facts() -> dict[str, str]:
    """Model, count, flags, memory, kernel. Numbers that move while nobody looks (MHz, free memory) are jitter."""
    facts = {
        "cpu.arch": platform.machine(),
        "cpu.count": str(os.cpu_count() or 0),
        "os.kernel": platform.release(),
        "os.system": platform.system(),
        "os.libc": " ".join(platform.libc_ver()).strip(),
    }
    if hasattr(os, "sched_getaffinity"):
        facts["cpu.usable"] = str(len(os.sched_getaffinity(0)))
    info = _read("/proc/cpuinfo")
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", info, re.MULTILINE))
    if model := fields.get("model name") or fields.get("Model") or platform.processor():
        facts["cpu.model"] = model
    if signature := _cpu_signature(fields):
        facts["cpu.signature"] = signature
    if flags := (fields.get("flags") or fields.get("Features") or "").split():
        facts["cpu.flags"] = " ".join(sorted(CPU_FLAGS.intersection(flags)))
    if mhz := fields.get("cpu MHz"):
        facts["cpu.mhz"] = mhz
    memory = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE))
    if total := memory.get("MemTotal"):
        facts["memory.total_gib"] = str(round(int(total) / (1 << 20)))
    if free := memory.get("MemAvailable"):
        facts["memory.available_gib"] = f"{int(free) / (1 << 20):.1f}"
    if governor := _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip():
        facts["cpu.governor"] = governor
    if hasattr(os, "getloadavg"):
        facts["cpu.load1"] = f"{os.getloadavg()[0]:.2f}"
    return facts


def _cpu_signature(fields: dict[str, str]) -> str:
    """Which silicon it is, in the kernel's numbers: a virtual machine may call every generation by one model name."""
    named = {
        "family": ("cpu family", "CPU architecture"),
        "model": ("model", "CPU part"),
        "stepping": ("stepping", "CPU revision"),
    }
    found = {word: next((fields[key] for key in keys if key in fields), "") for word, keys in named.items()}
    return " ".join(f"{word} {number}" for word, number in found.items() if number)


def python_facts() -> dict[str, str]:
    """The interpreter and the versions of what is installed, read from metadata: nothing is imported for it."""
    import importlib.metadata  # not above: with zip files and mail headers it is a sixth of the start of any command

    facts = {
        "python.version": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "python.debug_build": "yes" if sysconfig.get_config_var("Py_DEBUG") else "no",
        "python.optimize": str(sys.flags.optimize),
    }
    for package in PACKAGES:
        try:
            facts[f"{package}.version"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed environment variables, as ``env.NAME``; long values are cut, with their length said."""
    names = [name for name in environ if name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)]
    chosen = {name: environ[name] for name in names}
    return {
        f"env.{name}": value if len(value) <= VALUE_LIMIT else f"{value[:VALUE_LIMIT]}... ({len(value)} characters)"
        for name, value in chosen.items()
    }


def native_facts(root: Path) -> dict[str, str]:
    """Digest of the native library as it lies on disk, and whether its build record says the same."""
    override = os.environ.get("SM70_NATIVE_LIBRARY")
    library = Path(override) if override else root / "artifacts" / "native" / "libsm70.so"
    if not library.is_file():
        return {"native.reason": f"no library at {library.name}: build it with python -m native.build"}
    facts = {"native.sha256": sha256_file(library)}
    record_path = library.with_name("build.json")
    if not record_path.is_file():
        return facts | {"native.reason": "no build.json beside the library"}
    try:
        record = json.loads(record_path.read_bytes())
        stated = str(record["library_sha256"])
        compiler = str(record["compiler"]["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return facts | {"native.reason": f"build.json cannot be read: {error!r}"}
    if stated != facts["native.sha256"]:
        facts["native.reason"] = f"build.json states {stated}: the library was built or changed since"
    return facts | {"native.compiler": compiler}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
