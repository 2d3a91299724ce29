"""What makes this process unfit for timing: looked for from inside it, never assumed absent.

Standard library only, and no library is imported to ask it: one that is not loaded cannot be tracing. Each finding is
one sentence that names what was seen.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

INJECTION_VARIABLES = {
    "CUDA_INJECTION64_PATH": "a CUDA injection library (nsys, ncu or a sanitizer) is attached",
    "CUDA_INJECTION32_PATH": "a CUDA injection library (nsys, ncu or a sanitizer) is attached",
    "NVTX_INJECTION64_PATH": "an NVTX injection library (nsys) is attached",
    "NSYS_PROFILING_SESSION_ID": "the process runs under nsys",
    "NV_NSIGHT_INJECTION_TRANSPORT_TYPE": "the process runs under Nsight Compute",
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR": "the process runs under Nsight Compute",
    "ASAN_OPTIONS": "address sanitizer options are set",
    "TSAN_OPTIONS": "thread sanitizer options are set",
    "COVERAGE_PROCESS_START": "coverage measures every Python process",
    "COVERAGE_RUN": "coverage runs this process",
}
SWITCHES = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits",
    "TORCH_SHOW_DISPATCH_TRACE": "torch prints each dispatch",
    "PYTHONDEVMODE": "Python development mode checks every call",
    "PYTHONPROFILEIMPORTTIME": "import times are traced",
    "PYTHONTRACEMALLOC": "every allocation is traced",
}
SLOW_LIBRARIES = (
    "libasan",
    "libtsan",
    "libubsan",
    "libmsan",
    "liblsan",
    "valgrind",
    "vgpreload",
    "libcuinj64",
    "libprofiler",
)


def unfit_reasons() -> list[str]:
    """Every reason found now, in a fixed order; empty for a fit process."""
    return [*_interpreter(), *_tracers(), *_environment(os.environ), *_kernel_view(Path("/proc/self"))]


def _interpreter() -> list[str]:
    reasons = []
    if sys.flags.dev_mode:
        reasons.append("Python development mode is on (-X dev)")
    if sysconfig.get_config_var("Py_DEBUG"):
        reasons.append("Python is a debug build (Py_DEBUG)")
    if tracemalloc.is_tracing():
        reasons.append("tracemalloc is tracing allocations")
    return reasons


def _tracers() -> list[str]:
    reasons = []
    if (trace := sys.gettrace()) is not None:
        reasons.append(f"a trace function is set ({_name(trace)})")
    if (profile := sys.getprofile()) is not None:
        reasons.append(f"a profile function is set ({_name(profile)})")
    if threading.gettrace() is not None or threading.getprofile() is not None:
        reasons.append("a trace or profile function is set for new threads")
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is not None:
        tools = [name for tool in range(6) if (name := monitoring.get_tool(tool)) and monitoring.get_events(tool)]
        reasons += [f"sys.monitoring tool {name!r} listens to events" for name in tools]
    coverage = sys.modules.get("coverage")
    if coverage is not None and hasattr(coverage, "Coverage") and coverage.Coverage.current() is not None:
        reasons.append("coverage is measuring")
    reasons += _torch_modes()
    return reasons


def _torch_modes() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):
        return []
    reasons = []
    if getattr(torch, "is_anomaly_enabled", lambda: False)():
        reasons.append("torch anomaly detection is on")
    if getattr(torch.autograd, "_profiler_enabled", lambda: False)():
        reasons.append("the torch profiler is recording")
    return reasons


def _environment(environ: Mapping[str, str]) -> list[str]:
    reasons = [f"{name} is set: {why}" for name, why in INJECTION_VARIABLES.items() if environ.get(name)]
    reasons += [
        f"{name}={environ[name]}: {why}" for name, why in SWITCHES.items() if environ.get(name, "0") not in ("", "0")
    ]
    if environ.get("PYTHONMALLOC", "").endswith("debug") or environ.get("PYTHONMALLOC") == "malloc_debug":
        reasons.append(f"PYTHONMALLOC={environ['PYTHONMALLOC']}: allocations are checked")
    preload = environ.get("LD_PRELOAD", "")
    reasons += [f"LD_PRELOAD loads {slow}" for slow in SLOW_LIBRARIES if slow in preload]
    return reasons


def _kernel_view(process: Path) -> list[str]:
    """What the kernel knows: a debugger that is attached, a sanitizer that is mapped (Linux; elsewhere nothing)."""
    reasons = []
    try:
        status = (process / "status").read_text(errors="replace")
        maps = (process / "maps").read_text(errors="replace")
    except OSError:
        return []
    tracer = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    if tracer != "0":
        reasons.append(f"process {tracer} traces this one (a debugger, strace or rr)")
    mapped = {slow for slow in SLOW_LIBRARIES for line in maps.splitlines() if slow in line.rpartition("/")[2]}
    reasons += [f"{slow} is loaded into the process" for slow in sorted(mapped)]
    return reasons


def _name(hook: object) -> str:
    return getattr(hook, "__qualname__", None) or type(hook).__qualname__
