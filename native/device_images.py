"""CUDA C++ -> compute_70 PTX (NVRTC) -> sm_70 cubin (ptxas), one image a `.cu` file, cached by digest.

No CUDA install is needed: NVRTC, ptxas and the headers come from packages.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from native.files import sha256
from native.toolchain import BuildError, CudaPackages

NVRTC_OPTIONS = ("--gpu-architecture=compute_70", "--std=c++17", "-default-device")
PTXAS_OPTIONS = ("-arch=sm_70", "-v", "-O3")

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for 'sm_70'")
_STACK = re.compile(r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill")
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONST = re.compile(r"(\d+) bytes cmem\[\d+\]")
_PTX_ENTRY = re.compile(r"\.entry\s+(?P<name>\w+)\s*\((?P<rest>.*?)\{", re.DOTALL)
_PTX_MAXNTID = re.compile(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")


@dataclass(frozen=True)
class KernelResources:
    """What ptxas reports for one kernel on sm_70. Bytes unless said; `max_threads` is the launch bound."""

    kernel: str
    image: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    const: int
    max_threads: int


@dataclass(frozen=True)
class DeviceImage:
    """One compiled `.cu` file and its kernels."""

    name: str
    ptx: Path
    cubin: Path
    ptx_sha256: str
    cubin_sha256: str
    kernels: tuple[KernelResources, ...]


def source_key(source: Path, include_dirs: Sequence[Path], packages: CudaPackages) -> str:
    """Digest of everything that decides the image of `source`: its own includes, the tools, the options."""
    digest = hashlib.sha256()
    for words in (NVRTC_OPTIONS, PTXAS_OPTIONS, *packages.versions):
        digest.update(repr(tuple(words)).encode())
    for path in (source, *included_files(source, include_dirs)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def included_files(source: Path, include_dirs: Sequence[Path]) -> tuple[Path, ...]:
    """Files that `source` includes by quoted name, directly or not, sorted; those of the CUDA packages are not ours."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop().read_text()):
            path = next((base / name for base in include_dirs if (base / name).is_file()), None)
            if path is not None and path not in found:
                found.add(path)
                waiting.append(path)
    return tuple(sorted(found))


def build_images(
    sources: Iterable[Path],
    include_dirs: Sequence[Path],
    packages: CudaPackages,
    out_dir: Path,
    progress: Callable[[str], None],
    jobs: int | None = None,
) -> tuple[DeviceImage, ...]:
    """Compile every source whose digest is not the one of the image already in `out_dir`, `jobs` at a time.

    Raises:
        BuildError: NVRTC or ptxas refused a file; the message holds their log.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    sources = tuple(sorted(sources))
    keys = {source: source_key(source, include_dirs, packages) for source in sources}
    images = {source: _load_cached(out_dir, source.stem, keys[source]) for source in sources}
    missing = [source for source, image in images.items() if image is None]
    if missing:
        nvrtc = Nvrtc(packages.nvrtc)

        def make(source: Path) -> DeviceImage:
            progress(f"device image {missing.index(source) + 1}/{len(missing)}: {source.name}")
            ptx = nvrtc.compile(source, (*include_dirs, *packages.include_dirs))
            return _assemble(source.stem, ptx, keys[source], packages.ptxas, out_dir)

        # NVRTC and ptxas run outside the interpreter's lock.
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            images.update(zip(missing, pool.map(make, missing), strict=True))
    built = [image for image in images.values() if image is not None]
    _remove_stale(out_dir, {source.stem for source in sources})
    _refuse_duplicate_kernels(built)
    return tuple(built)


class Nvrtc:
    """The few NVRTC calls the build needs, over ctypes."""

    def __init__(self, path: Path) -> None:
        try:
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"cannot load {path}: {error}") from error
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, source: Path, include_dirs: Iterable[Path]) -> bytes:
        """PTX text for compute_70, without the terminating NUL."""
        program = ctypes.c_void_p()
        options = [*NVRTC_OPTIONS, *(f"-I{path}" for path in include_dirs)]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        text = source.read_bytes()
        self._check(
            self._lib.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None), source
        )
        try:
            status = self._lib.nvrtcCompileProgram(program, len(options), encoded)
            if status != 0:
                raise BuildError(f"{source}: NVRTC refused it:\n{self._log(program)}")
            size = ctypes.c_size_t()
            self._check(self._lib.nvrtcGetPTXSize(program, ctypes.byref(size)), source)
            buffer = ctypes.create_string_buffer(size.value)
            self._check(self._lib.nvrtcGetPTX(program, buffer), source)
            return buffer.raw.rstrip(b"\0")
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._lib.nvrtcGetProgramLog(program, buffer)
        return buffer.value.decode(errors="replace")

    def _check(self, status: int, source: Path) -> None:
        if status != 0:
            name = self._lib.nvrtcGetErrorString(status).decode()
            raise BuildError(f"{source}: NVRTC call failed: {name}")


def parse_ptxas(log: str, image: str, ptx: str) -> tuple[KernelResources, ...]:
    """Resource rows out of a `ptxas -v` log, one a kernel, sorted by name.

    Raises:
        BuildError: a kernel of the log lacks its figures, or its PTX has no launch bound.
    """
    bounds = launch_bounds(ptx)
    rows = []
    for block in re.split(r"(?=ptxas info\s+: Compiling entry function)", log):
        entry = _ENTRY.search(block)
        if entry is None:
            continue
        name = entry["name"]
        stack = _STACK.search(block)
        used = _USED.search(block)
        if stack is None or used is None:
            raise BuildError(f"{image}: ptxas gave no resource figures for kernel {name}:\n{block}")
        if name not in bounds:
            raise BuildError(f"{image}: kernel {name} has no __launch_bounds__; add one so occupancy is known")
        shared = _SHARED.search(block)
        rows.append(
            KernelResources(
                kernel=name,
                image=image,
                registers=int(used["registers"]),
                stack=int(stack["stack"]),
                spill_stores=int(stack["stores"]),
                spill_loads=int(stack["loads"]),
                static_shared=int(shared[1]) if shared else 0,
                const=sum(int(size) for size in _CONST.findall(block)),
                max_threads=bounds[name],
            )
        )
    return tuple(sorted(rows, key=lambda row: row.kernel))


def launch_bounds(ptx: str) -> dict[str, int]:
    """Threads a block each kernel of a PTX text is bounded to (`.maxntid`)."""
    bounds = {}
    for entry in _PTX_ENTRY.finditer(ptx):
        maxntid = _PTX_MAXNTID.search(entry["rest"])
        if maxntid is not None:
            x, y, z = (int(part) if part else 1 for part in maxntid.groups())
            bounds[entry["name"]] = x * y * z
    return bounds


def _assemble(name: str, ptx: bytes, key: str, ptxas: Path, out_dir: Path) -> DeviceImage:
    ptx_path = out_dir / f"{name}.ptx"
    cubin_path = out_dir / f"{name}.cubin"
    # The sidecar is what makes an image count: drop it first, write it last.
    sidecar = out_dir / f"{name}.json"
    sidecar.unlink(missing_ok=True)
    ptx_path.write_bytes(ptx)
    if not os.access(ptxas, os.X_OK):
        ptxas.chmod(ptxas.stat().st_mode | 0o111)
    done = subprocess.run(
        [str(ptxas), *PTXAS_OPTIONS, str(ptx_path), "-o", str(cubin_path)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BuildError(f"{name}.cu: ptxas refused its PTX:\n{done.stderr or done.stdout}")
    kernels = parse_ptxas(done.stderr + done.stdout, name, ptx.decode())
    image = DeviceImage(name, ptx_path, cubin_path, sha256(ptx_path), sha256(cubin_path), kernels)
    record = {
        "key": key,
        "ptx_sha256": image.ptx_sha256,
        "cubin_sha256": image.cubin_sha256,
        "kernels": [asdict(row) for row in kernels],
    }
    sidecar.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return image


def _load_cached(out_dir: Path, name: str, key: str) -> DeviceImage | None:
    """The image in `out_dir` if it was made from the same inputs and is still whole."""
    sidecar, ptx, cubin = (out_dir / f"{name}.{suffix}" for suffix in ("json", "ptx", "cubin"))
    if not (sidecar.is_file() and ptx.is_file() and cubin.is_file()):
        return None
    try:
        record = json.loads(sidecar.read_text())
    except json.JSONDecodeError:
        return None  # an interrupted write: build it again
    if record.get("key") != key:
        return None
    if record["ptx_sha256"] != sha256(ptx) or record["cubin_sha256"] != sha256(cubin):
        return None
    kernels = tuple(KernelResources(**row) for row in record["kernels"])
    return DeviceImage(name, ptx, cubin, record["ptx_sha256"], record["cubin_sha256"], kernels)


def _remove_stale(out_dir: Path, names: set[str]) -> None:
    for path in out_dir.iterdir():
        if path.suffix in {".json", ".ptx", ".cubin"} and path.stem not in names:
            path.unlink()


def _refuse_duplicate_kernels(images: Iterable[DeviceImage]) -> None:
    owner: dict[str, str] = {}
    for image in images:
        for row in image.kernels:
            if row.kernel in owner:
                raise BuildError(f"kernel {row.kernel} is defined in {owner[row.kernel]}.cu and {image.name}.cu")
            owner[row.kernel] = image.name
