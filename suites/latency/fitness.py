"""Whether this process may be timed: looked at, not assumed. Each reason says what was seen."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.llm import LLM

SLOW_LIBRARIES = ("libasan", "libtsan", "libubsan", "libmsan", "valgrind", "vgpreload", "libcuinj64", "libprofiler")
SLOW_VARIABLES = (
    "ASAN_OPTIONS",
    "COVERAGE_PROCESS_START",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "NSYS_PROFILING_SESSION_ID",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONTRACEMALLOC",
)


def unfit_reasons() -> list[str]:
    """Why a time taken now would not be one of the engine alone; empty when nothing was found."""
    hooks = {
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
    }
    reasons = [f"{name} holds {hook!r}" for name, hook in hooks.items() if hook is not None]
    if sys.flags.dev_mode:
        reasons.append("Python development mode is on")
    if sysconfig.get_config_var("Py_DEBUG"):
        reasons.append("Python is a debug build")
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        reasons += [f"sys.monitoring tool {name}" for tool in range(6) if (name := monitoring.get_tool(tool))]
    reasons += [f"{name}={value} is set" for name in SLOW_VARIABLES if (value := os.environ.get(name))]
    return reasons + _torch_modes() + _seen_by_the_kernel(Path("/proc/self"))


def engine_reasons(llm: LLM) -> list[str]:
    """What watches or wraps the rounds of this engine: an observer, a forward or a step that was replaced."""
    reasons = [f"an observer watches every round: {llm.observer!r}"] if llm.observer is not None else []
    wrapped = [("step", llm), ("forward", llm.runner)]
    return reasons + [f"{type(owner).__name__}.{name} is wrapped" for name, owner in wrapped if name in vars(owner)]


def library_reasons(library: Path) -> list[str]:
    """What its build record says against timing the native library: no optimisation, a sanitizer, coverage."""
    record = library.with_name("build.json")
    if not record.is_file():
        return []
    flags: Mapping[str, str] = json.loads(record.read_text()).get("flags", {})
    slow = ("-O0", "-Og", "-O1", "-fsanitize", "--coverage", "-fprofile-generate")
    found = {flag: name for name, line in flags.items() for flag in line.split() if flag.startswith(slow)}
    bare = next((name for name, line in flags.items() if "-O" not in line), "")
    return [f"the native library is built with {flag} ({name})" for flag, name in sorted(found.items())] + (
        [f"the native library is built without optimisation ({bare})"] if bare else []
    )


def _torch_modes() -> list[str]:
    """Profilers and checks of torch; a torch that is not loaded has none."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return []
    reasons = ["torch anomaly detection is on"] if torch.is_anomaly_enabled() else []
    return reasons + (["the torch profiler is recording"] if torch.autograd._profiler_enabled() else [])


def _seen_by_the_kernel(process: Path) -> list[str]:
    if not process.is_dir():
        return []
    tracer = next(
        (line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("TracerPid:")),
        "0",
    )
    reasons = [f"process {tracer} traces this one"] if tracer != "0" else []
    mapped = {Path(line.split(maxsplit=5)[-1]).name for line in (process / "maps").read_text().splitlines()}
    return reasons + [f"{name} is loaded" for name in sorted(mapped) if name.startswith(SLOW_LIBRARIES)]
