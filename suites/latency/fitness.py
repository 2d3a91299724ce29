"""Whether this process may be timed: looked at, not assumed. Each reason says what was seen."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

SLOW_LIBRARIES = ("libasan", "libtsan", "libubsan", "libmsan", "valgrind", "vgpreload", "libcuinj64", "libprofiler")
SLOW_VARIABLES = (
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
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        reasons += [f"sys.monitoring tool {name}" for tool in range(6) if (name := monitoring.get_tool(tool))]
    reasons += [f"{name}={value} is set" for name in SLOW_VARIABLES if (value := os.environ.get(name))]
    return reasons + _seen_by_the_kernel(Path("/proc/self"))


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
