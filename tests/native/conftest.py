"""A small native tree that builds in seconds: the real builder and capability list, one kernel, a made-up launcher."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from native import build, host_library

NATIVE = Path(__file__).resolve().parents[2] / "native"
FILES = (
    "CMakeLists.txt",
    "exports.map",
    "cpu/capability.cpp",
    "include/capability.h",
    "cuda/driver.h",
    "cuda/device.cuh",
    "cuda/faults.h",
    "cuda/rms_norm.cu",
)
LAUNCHER = """
#include "cuda/driver.h"
static const sm70::Capability capability("rms_norm_cuda", 1);
SM70_EXPORT const char* sm70_dynamic_shared_list() { return "rms_norm_f16=0\\n"; }
"""


@pytest.fixture
def native_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The builder pointed at a copy of a few sources; returns the copy's folder."""
    tree = tmp_path / "native"
    for name in FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(NATIVE / name, tree / name)
    (tree / "cuda" / "made_launch.cpp").write_text(LAUNCHER)
    monkeypatch.setattr(build, "NATIVE_DIR", tree)
    monkeypatch.setattr(host_library, "_NATIVE_DIR", tree)
    return tree
