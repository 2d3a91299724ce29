"""Finds and loads the native library, and refuses one whose ops are older than the caller needs."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from pathlib import Path

from native.built import DEFAULT_OUT, LIBRARY_NAME

LIBRARY_VARIABLE = "SM70_NATIVE_LIBRARY"
DEFAULT_LIBRARY = DEFAULT_OUT / LIBRARY_NAME


class NativeLibraryError(RuntimeError):
    """The native library is missing, cannot be loaded, or is too old for the caller."""


def library_path() -> Path:
    """The file `library()` loads: SM70_NATIVE_LIBRARY if set, else artifacts/native/libsm70.so."""
    asked = os.environ.get(LIBRARY_VARIABLE, "").strip()
    return Path(asked).resolve() if asked else DEFAULT_LIBRARY


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library; one a process.

    Raises:
        NativeLibraryError: there is no library at `library_path()`, or the system refuses to load it.
    """
    path = library_path()
    if not path.is_file():
        where = f" ({LIBRARY_VARIABLE}={path})" if os.environ.get(LIBRARY_VARIABLE) else ""
        raise NativeLibraryError(f"native library not built{where}: run python -m native.build")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(f"cannot load {path}: {error}; rebuild: python -m native.build") from error
    if not hasattr(lib, "sm70_capability"):
        raise NativeLibraryError(f"{path} is not the native library: it has no sm70_capability")
    return lib


def capability(op: str) -> int:
    """Capability number of `op` in the loaded library; 0 when the library does not know the op."""
    return capability_of(library(), op)


def capability_of(lib: ctypes.CDLL, op: str) -> int:
    """Capability number of `op` in `lib`; 0 when it does not know the op."""
    return int(lib.sm70_capability(ctypes.c_char_p(op.encode())))


def capabilities_of(lib: ctypes.CDLL) -> dict[str, int]:
    """Capability number of every op of `lib`, by the op's native name."""
    function = lib.sm70_capability_list
    function.restype = ctypes.c_char_p
    lines = function().decode().splitlines()
    return {name: int(number) for name, _, number in (line.partition("=") for line in lines)}


def require(op: str, number: int) -> ctypes.CDLL:
    """The library, once it is known to carry `op` at capability `number` or newer.

    Raises:
        NativeLibraryError: the library's op is older, or absent.
    """
    lib = library()
    found = capability(op)
    if found < number:
        seen = "does not have it" if found == 0 else f"has capability {found}"
        raise NativeLibraryError(
            f"native op {op} needs capability {number}, {library_path()} {seen}: rebuild: python -m native.build"
        )
    return lib


def library_sha256() -> str:
    """Hex SHA-256 of the file `library()` loads, for evidence records."""
    path = library_path()
    if not path.is_file():
        raise NativeLibraryError("native library not built: run python -m native.build")
    return hashlib.sha256(path.read_bytes()).hexdigest()
