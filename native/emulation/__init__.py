"""The kernels' device code on the CPU, for checking its logic where there is no GPU.

`build()` compiles every `cuda/*.cu` against `cuda_emulation.h`, and the launchers as they are, into one shared object
with the C ABI of the real device path; `native.cuda_bindings.launch.emulated()` makes the CUDA ops use it on CPU
tensors. Slow (fibers for threads), and its floating-point bits are not a GPU's.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from native.build import NATIVE_DIR
from native.built import DEFAULT_OUT
from native.files import replace_file
from native.toolchain import BuildError, find_compiler

# -ffp-contract=fast: ptxas fuses multiply and add as well, so a kernel may not count on either.
FLAGS = ("-std=c++17", "-O2", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=fast", "-fPIC", "-DSM70_EMULATED", "-Wall")
# What the emulation replaces.
DRIVER = "driver_launch.cpp"


def build(
    out_dir: Path = DEFAULT_OUT / "emulation",
    progress: Callable[[str], None] | None = None,
    kernels: Sequence[Path] | None = None,
) -> Path:
    """Compile what changed and return the shared object.

    ``kernels``: device sources and launchers to take instead of all of native/cuda.

    Raises:
        BuildError: no compiler, or a source does not compile.
    """
    compiler = find_compiler().path
    out_dir.mkdir(parents=True, exist_ok=True)
    headers = sorted(path for pattern in ("**/*.h", "**/*.cuh") for path in NATIVE_DIR.glob(pattern))
    common = hashlib.sha256(repr((compiler, FLAGS)).encode())
    for header in headers:
        common.update(header.read_bytes())
    if kernels is None:
        launchers = (path for path in NATIVE_DIR.glob("cuda/*_launch.cpp") if path.name != DRIVER)
        kernels = [*sorted(NATIVE_DIR.glob("cuda/*.cu")), *sorted(launchers)]
    sources = [
        *kernels,
        NATIVE_DIR / "emulation" / "emulation.cpp",
        NATIVE_DIR / "cpu" / "capability.cpp",
    ]
    objects = []
    for source in sources:
        digest = common.copy()
        digest.update(source.read_bytes())
        target = out_dir / f"{source.stem}-{digest.hexdigest()[:16]}.o"
        objects.append(target)
        if not target.is_file():
            if progress is not None:
                progress(f"emulation: {source.name}")
            for stale in out_dir.glob(f"{source.stem}-*.o"):
                stale.unlink()
            _compile(compiler, source, target)
    key = hashlib.sha256("".join(path.name for path in objects).encode()).hexdigest()[:16]
    library = out_dir / f"libsm70_emulated-{key}.so"
    if not library.is_file():
        for old in out_dir.glob("libsm70_emulated-*.so"):
            old.unlink()
        linked = out_dir / ".linked.so"
        _run([compiler, "-shared", "-o", str(linked), *map(str, objects)], "the emulation did not link")
        replace_file(library, linked.read_bytes(), mode=0o755)
        linked.unlink()
    return library


def _compile(compiler: str, source: Path, target: Path) -> None:
    includes = [f"-I{path}" for path in (NATIVE_DIR, NATIVE_DIR / "include", NATIVE_DIR / "cuda")]
    partial = target.with_suffix(".tmp")
    argv = [compiler, *FLAGS, *includes, "-x", "c++", "-c", str(source), "-o", str(partial)]
    _run(argv, f"{source.name} did not compile for the emulation")
    partial.replace(target)


def _run(argv: list[str], failure: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{failure}:\n{done.stderr.strip()[:20000]}")
