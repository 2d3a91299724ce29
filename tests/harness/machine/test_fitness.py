from __future__ import annotations

import sys
import threading
import types
from pathlib import Path

import pytest

from harness.machine import fitness

FIT_STATUS = "Name:\tpython\nTracerPid:\t0\n"
FIT_MAPS = "7f0 r-xp 0 08:01 1 /usr/lib/libc.so.6\n"


def process(folder: Path, status: str = FIT_STATUS, maps: str = FIT_MAPS) -> Path:
    (folder / "status").write_text(status)
    (folder / "maps").write_text(maps)
    return folder


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "every kernel launch waits"),
        ({"NVTX_INJECTION64_PATH": "/nsys.so"}, "nsys"),
        ({"NSYS_PROFILING_SESSION_ID": "1"}, "runs under nsys"),
        ({"LD_PRELOAD": "/usr/lib/libasan.so.8"}, "LD_PRELOAD loads libasan"),
        ({"LD_PRELOAD": "/usr/libexec/valgrind/vgpreload_core.so"}, "LD_PRELOAD loads valgrind"),
        ({"ASAN_OPTIONS": "detect_leaks=0"}, "address sanitizer"),
        ({"COVERAGE_PROCESS_START": "x"}, "coverage"),
        ({"PYTHONMALLOC": "pymalloc_debug"}, "allocations are checked"),
        ({"PYTHONPROFILEIMPORTTIME": "1"}, "import times"),
    ],
)
def test_variables(environ: dict[str, str], says: str) -> None:
    assert any(says in reason for reason in fitness._environment(environ))


def test_harmless_variables_are_no_reason() -> None:
    environ = {"CUDA_LAUNCH_BLOCKING": "0", "LD_PRELOAD": "/usr/lib/libjemalloc.so", "PYTHONDEVMODE": "", "HOME": "/x"}
    assert fitness._environment(environ) == []


def test_a_debugger_and_a_mapped_sanitizer_are_seen(tmp_path: Path) -> None:
    assert fitness._kernel_view(process(tmp_path)) == []
    spoilt = process(tmp_path, "TracerPid:\t42\n", FIT_MAPS + "7f1 r-xp 0 08:01 2 /usr/lib/libtsan.so.2\n")
    assert fitness._kernel_view(spoilt) == [
        "process 42 traces this one (a debugger, strace or rr)",
        "libtsan is loaded into the process",
    ]
    assert fitness._kernel_view(tmp_path / "elsewhere") == []


def test_hooks_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    monkeypatch.setattr(threading, "gettrace", lambda: print)
    assert fitness._tracers()[:2] == [
        "a trace function is set (print)",
        "a trace or profile function is set for new threads",
    ]


def test_monitoring_tools_of_python_3_12(monkeypatch: pytest.MonkeyPatch) -> None:
    monitoring = types.SimpleNamespace(
        get_tool=lambda tool: "coverage" if tool == 1 else None, get_events=lambda tool: 32 if tool == 1 else 0
    )
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    assert "sys.monitoring tool 'coverage' listens to events" in fitness._tracers()


def test_libraries_that_are_loaded_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = types.ModuleType("coverage")
    coverage.Coverage = types.SimpleNamespace(current=lambda: object())  # type: ignore[attr-defined]
    torch = types.ModuleType("torch")
    torch.is_anomaly_enabled = lambda: True  # type: ignore[attr-defined]
    torch.autograd = types.SimpleNamespace(_profiler_enabled=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coverage", coverage)
    monkeypatch.setitem(sys.modules, "torch", torch)
    reasons = fitness._tracers()
    assert "coverage is measuring" in reasons
    assert "torch anomaly detection is on" in reasons
    assert "the torch profiler is recording" in reasons
