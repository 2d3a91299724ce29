"""Finds what the build needs: a C++17 compiler, CMake, ninja, and the CUDA packages. Runs only version checks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

COMPILER_NAMES = ("c++", "g++", "clang++")
CUDA_PACKAGES = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12")
_CXX17_PROBE = "#include <string_view>\nint main() { if constexpr (sizeof(std::string_view) > 0) return 0; }\n"


class BuildError(RuntimeError):
    """The native library could not be built. The message says what was seen and what to do."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that was seen to compile a C++17 program."""

    path: str
    version: str
    source: str  # "CXX" or the name it was found under


@dataclass(frozen=True)
class CudaPackages:
    """Where the CUDA packages of this environment keep what the device images need."""

    nvrtc: Path
    ptxas: Path
    include_dirs: tuple[Path, ...]
    versions: tuple[tuple[str, str], ...]


def find_compiler() -> Compiler:
    """The compiler named by CXX, else the first of c++, g++ and clang++ that compiles C++17.

    Raises:
        BuildError: there is none, or the one CXX names does not work.
    """
    asked = os.environ.get("CXX", "").strip()
    if asked:
        words = shlex.split(asked)
        if len(words) != 1:
            raise BuildError(f"CXX={asked!r} holds {len(words)} words; set CXX to one compiler path, without flags")
        path = shutil.which(words[0])
        if path is None:
            raise BuildError(f"no C++17 compiler: CXX={asked!r} is not an executable; install it or unset CXX")
        problem = _probe(path)
        if problem:
            raise BuildError(f"no C++17 compiler: CXX={asked!r} failed on a C++17 program: {problem}")
        return Compiler(path, _first_line([path, "--version"]), "CXX")
    refused = []
    for name in COMPILER_NAMES:
        path = shutil.which(name)
        if path is None:
            refused.append(f"{name} (not on PATH)")
            continue
        problem = _probe(path)
        if not problem:
            return Compiler(path, _first_line([path, "--version"]), name)
        refused.append(f"{name} ({problem})")
    raise BuildError(f"no C++17 compiler: looked for CXX, {', '.join(refused)}; install g++ or set CXX")


def find_tool(name: str) -> str:
    """The path of `cmake` or `ninja`: the one this environment's package carries, else the one on PATH.

    Raises:
        BuildError: neither is there.
    """
    # A package puts its script beside the interpreter; PATH may hold an older one from the system.
    beside = Path(sysconfig.get_path("scripts")) / name
    if beside.is_file():
        return str(beside)
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"{name} not found beside this Python or on PATH: pip install {name}")
    return path


def tool_version(path: str) -> str:
    """First line of `path --version`."""
    return _first_line([path, "--version"])


def find_cuda_packages() -> CudaPackages | str:
    """The CUDA packages, or the reason why device images cannot be built here."""
    versions = []
    for package in CUDA_PACKAGES:
        try:
            versions.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            return f"package {package} is not installed"
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    nvrtc = _first_existing(roots, "cuda_nvrtc/lib/libnvrtc.so.12")
    ptxas = _first_existing(roots, "cuda_nvcc/bin/ptxas")
    runtime_include = _first_existing(roots, "cuda_runtime/include")
    nvcc_include = _first_existing(roots, "cuda_nvcc/include")
    wanted = {
        "libnvrtc.so.12": nvrtc,
        "ptxas": ptxas,
        "the CUDA runtime headers": runtime_include,
        "the nvcc headers": nvcc_include,
    }
    missing = [name for name, path in wanted.items() if path is None]
    if missing or nvrtc is None or ptxas is None or runtime_include is None or nvcc_include is None:
        return f"the CUDA packages are installed but lack {', '.join(missing)}"
    return CudaPackages(nvrtc, ptxas, (runtime_include, nvcc_include), tuple(versions))


def _first_existing(roots: list[Path], relative: str) -> Path | None:
    return next((root / relative for root in roots if (root / relative).exists()), None)


def _probe(path: str) -> str:
    """Empty when `path` compiles a C++17 program, else the first line it complained with."""
    try:
        done = subprocess.run(
            [path, "-std=c++17", "-x", "c++", "-fsyntax-only", "-"],
            input=_CXX17_PROBE,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except OSError as error:
        return f"could not run: {error.strerror}"
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[0] if lines else f"exit status {done.returncode}"


def _first_line(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"
