"""Builds artifacts/native/libsm70.so: `python -m native.build`.

Steps: device images (NVRTC, ptxas) -> embedding source -> CMake and ninja -> library and build record, each replaced
whole. A call whose inputs did not change returns at once; the caches below it rebuild only what changed.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from native.built import DEFAULT_OUT, LIBRARY_NAME, RECORD_NAME, SCHEMA, read_record
from native.device_images import NVRTC_OPTIONS, PTXAS_OPTIONS, DeviceImage, build_images
from native.files import replace_file, sha256, write_if_changed
from native.host_library import build_host, compile_flags, embedding_source, inspect_library
from native.sass import disassemble
from native.toolchain import (
    BuildError,
    Compiler,
    CudaPackages,
    find_compiler,
    find_cuda_packages,
    find_tool,
    tool_version,
)

NATIVE_DIR = Path(__file__).resolve().parent
SOURCE_PATTERNS = (
    "CMakeLists.txt",
    "exports.map",
    "cpu/*.cpp",
    "cpu/*.h",
    "cuda/*.cpp",
    "cuda/*.cu",
    "cuda/*.cuh",
    "cuda/*.h",
    "include/**/*.h",
    # The builder decides what is built too.
    "build.py",
    "device_images.py",
    "host_library.py",
    "toolchain.py",
)
# Room for objects, the linked library and its copy; a full disk is better met before the compile than during it.
NEEDED_BYTES = 96 * 1024 * 1024

Progress = Callable[[str], None]


def build(
    out_dir: Path = DEFAULT_OUT, *, progress: Progress | None = None, force: bool = False, jobs: int | None = None
) -> dict[str, Any]:
    """Bring the library in `out_dir` up to date and return its build record.

    Args:
        out_dir: receives `libsm70.so`, `build.json` and the caches of the steps.
        progress: called with one line before each long step.
        force: build even when the record says nothing changed.
        jobs: parallel compiles; ninja's default when None.

    Raises:
        BuildError: no compiler, a source that does not compile, a full disk. An earlier library stays as it was.
    """
    say = progress or _silent
    out_dir = out_dir.resolve()
    inputs = _inputs()
    if not force:
        record = read_record(out_dir)
        if record is not None and _is_current(record, inputs, out_dir):
            return record
    compiler = find_compiler()
    packages = find_cuda_packages()
    with _named_errors(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        with _lock(out_dir / ".lock", say):
            # Another process may have built while this one waited.
            record = None if force else read_record(out_dir)
            if record is not None and _is_current(record, inputs, out_dir):
                return record
            _require_room(out_dir)
            return _build(out_dir, inputs, compiler, packages, jobs, say)


def source_files() -> tuple[Path, ...]:
    """Every file whose bytes decide the library, sorted."""
    return tuple(sorted({path for pattern in SOURCE_PATTERNS for path in NATIVE_DIR.glob(pattern) if path.is_file()}))


def source_digest() -> str:
    """SHA-256 over names and bytes of `source_files()`."""
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(NATIVE_DIR).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _inputs() -> dict[str, Any]:
    """What the record is compared with to decide whether anything changed. Cheap: no process is started."""
    packages = find_cuda_packages()
    return {
        "source_digest": source_digest(),
        "cxx": os.environ.get("CXX", ""),
        "packages": dict(packages.versions) if isinstance(packages, CudaPackages) else packages,
        "machine": platform.machine(),
    }


def _is_current(record: dict[str, Any], inputs: dict[str, Any], out_dir: Path) -> bool:
    library = out_dir / LIBRARY_NAME
    return record["inputs"] == inputs and library.is_file() and sha256(library) == record["library_sha256"]


def _build(
    out_dir: Path,
    inputs: dict[str, Any],
    compiler: Compiler,
    packages: CudaPackages | str,
    jobs: int | None,
    say: Progress,
) -> dict[str, Any]:
    started = time.monotonic()
    images: tuple[DeviceImage, ...] = ()
    if isinstance(packages, CudaPackages):
        images = build_images(
            NATIVE_DIR.glob("cuda/*.cu"),
            (NATIVE_DIR / "cuda", NATIVE_DIR / "include"),
            packages,
            out_dir / "device",
            say,
            jobs,
        )
    else:
        say(f"device images: not built ({packages})")
    embed = out_dir / "generated" / "images.cpp"
    write_if_changed(embed, embedding_source(images))
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    built = build_host(out_dir / "host", embed, images, compiler, cmake, ninja, jobs, say)
    facts = inspect_library(built)
    record = {
        "schema": SCHEMA,
        "inputs": inputs,
        "source_digest": inputs["source_digest"],
        "compiler": asdict(compiler),
        "flags": compile_flags(out_dir / "host"),
        "nvrtc_options": list(NVRTC_OPTIONS),
        "ptxas_options": list(PTXAS_OPTIONS),
        "packages": inputs["packages"],
        "tools": {"cmake": tool_version(cmake), "ninja": tool_version(ninja), "python": platform.python_version()},
        "device_images": [
            {"name": image.name, "ptx_sha256": image.ptx_sha256, "cubin_sha256": image.cubin_sha256} for image in images
        ]
        if isinstance(packages, CudaPackages)
        else f"not built ({packages})",
        "kernels": [
            {**asdict(row), "dynamic_shared": facts["dynamic_shared"].get(row.kernel, 0)}
            for image in images
            for row in image.kernels
        ],
        "machine_code": disassemble(out_dir / "device") if images else "no device images",
        "capabilities": facts["capabilities"],
        "library_sha256": sha256(built),
        "library_bytes": built.stat().st_size,
        "build_seconds": round(time.monotonic() - started, 3),
    }
    # The record goes first out and last in: between the two the library counts as unbuilt, never as something else.
    (out_dir / RECORD_NAME).unlink(missing_ok=True)
    replace_file(out_dir / LIBRARY_NAME, built.read_bytes(), mode=0o755)
    replace_file(out_dir / RECORD_NAME, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
    say(f"built {out_dir / LIBRARY_NAME} ({record['library_bytes']} bytes) in {record['build_seconds']:.1f} s")
    return record


def _require_room(out_dir: Path) -> None:
    free = shutil.disk_usage(out_dir).free
    if free < NEEDED_BYTES:
        raise BuildError(
            f"no room in {out_dir}: {free // 2**20} MiB free, the build needs {NEEDED_BYTES // 2**20} MiB; "
            "free some space or pass another --out"
        )


@contextmanager
def _named_errors(out_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise BuildError(f"disk full while building in {out_dir}: free some space and run it again") from error
        raise BuildError(f"cannot build in {out_dir}: {error}") from error


@contextmanager
def _lock(path: Path, say: Progress) -> Iterator[None]:
    """One build of a folder at a time."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another build ({path})")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _silent(_line: str) -> None:
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m native.build",
        description="Build the native library: C++ host code and SM70 device images in one shared object.",
        epilog=(
            "The C++17 compiler is CXX if set, else the first of c++, g++, clang++ that works. Device images need the "
            "packages nvidia-cuda-nvrtc-cu12, nvidia-cuda-nvcc-cu12 and nvidia-cuda-runtime-cu12; without them the "
            "library is built without device code and the record says why. "
            "Exit status: 0 built or already current, 1 the build failed, 2 usage, 130 interrupted."
        ),
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="where the library goes (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    parser.add_argument("--jobs", type=int, metavar="N", help="compile N files at a time (default: ninja decides)")
    parser.add_argument("--print-record", action="store_true", help="print the build record as JSON on stdout")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line of the build; returns the exit status."""
    args = _parser().parse_args(argv)
    if args.jobs is not None and args.jobs < 1:
        _parser().error(f"--jobs {args.jobs}: at least 1")

    def say(line: str) -> None:
        print(f"native: {line}", file=sys.stderr, flush=True)

    try:
        record = build(args.out, progress=say, force=args.force, jobs=args.jobs)
    except BuildError as error:
        print(f"native: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("native: interrupted; the library in place is the one from before", file=sys.stderr)
        return 130
    if args.print_record:
        print(json.dumps(record, indent=1, sort_keys=True))
    else:
        print(f"{args.out / LIBRARY_NAME} sha256 {record['library_sha256']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
