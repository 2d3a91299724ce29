"""From a typed call to a launch on the caller's stream: which library, which device, which stream, and its errors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path

import torch

from native import loader

ERROR_BYTES = 1024

_loaded_devices: set[int] = set()
_emulation: ctypes.CDLL | None = None
# Ops that were found new enough, by (name, capability, emulated or not): asking the library costs more than a launch.
_functions: dict[tuple[str, int, bool], Callable[..., int]] = {}
_record_functions: dict[tuple[str, int, bool], Callable[..., int]] = {}


class _Message(threading.local):
    """A thread's own buffer for the library's error message."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(ERROR_BYTES)
        self.size = c_int64(ERROR_BYTES)
        self.address = ctypes.addressof(self.buffer)


_message = _Message()


@contextlib.contextmanager
def emulated(library: Path, order: int = 0) -> Iterator[None]:
    """Inside, the CUDA ops take CPU tensors and run the emulation `library` (see `native.emulation.build`).

    ``order``: how the threads of a block take turns between barriers; 0 ascending, 1 descending, more: a shuffle.
    """
    global _emulation
    before = _emulation
    _emulation = ctypes.CDLL(str(library))
    _emulation.sm70_emulation_order(order)
    _forget_functions()
    try:
        yield
    finally:
        _emulation = before
        _forget_functions()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Inside, CPU tensors belong to the CPU ops again, `emulated` or not: what an emulated answer is compared with."""
    global _emulation
    before, _emulation = _emulation, None
    try:
        yield
    finally:
        _emulation = before


def _forget_functions() -> None:
    _functions.clear()
    _record_functions.clear()


def device_type() -> str:
    """Where tensors of the CUDA ops must live: ``cuda``, or ``cpu`` inside `emulated`."""
    return "cuda" if _emulation is None else "cpu"


def load(device: int) -> str:
    """Load every kernel on ``device``, once; returns which code runs there (cubin, PTX or emulation).

    Takes seconds where the driver compiles PTX. Not to be called for the first time while a stream is capturing.

    Raises:
        RuntimeError: no driver, an older card, or an image the driver refuses.
    """
    _load(device)
    library = _library()
    library.sm70_cuda_image_kind.restype = ctypes.c_char_p
    kind = library.sm70_cuda_image_kind(device)
    return str(kind.decode())


def run(op: str, capability: int, device: torch.device, arguments: tuple[object, ...]) -> None:
    """Call ``sm70_<op>_cuda(*arguments, device, stream, err, err_len)`` for tensors on ``device``.

    ``arguments`` are ctypes values and tensors (passed by address; None is a null pointer).

    Raises:
        NativeLibraryError: the library has no such op, or an older one.
        RuntimeError: the launcher or the driver refused; the message is theirs.
    """
    function = _functions.get((op, capability, _emulation is not None)) or _function(op, capability)
    index, stream = _where(device)
    message = _message
    tail = (c_int(index), c_void_p(stream), message.buffer, message.size)
    if function(*map(_native, arguments), *tail) != 0:
        raise RuntimeError(f"{op}: {message.buffer.value.decode()}")


def run_record(op: str, capability: int, device: torch.device, record: bytes) -> None:
    """Call ``sm70_<op>_cuda(record, its size, device, stream, err, err_len)``: an op whose arguments are one record.

    A packed record and plain numbers cost Python a fraction of what `run`'s typed values do, which counts for an op
    that takes the device less time than its call.

    Raises:
        NativeLibraryError, RuntimeError: as `run`.
    """
    function = _record_functions.get((op, capability, _emulation is not None)) or _record_function(op, capability)
    index, stream = _where(device)
    message = _message
    if function(record, len(record), index, stream, message.address, ERROR_BYTES):
        raise RuntimeError(f"{op}: {message.buffer.value.decode()}")


def _where(device: torch.device) -> tuple[int, int]:
    """Index and current stream of ``device``, whose images are loaded; both 0 where kernels are emulated."""
    if device.type != "cuda":
        return 0, 0
    index = device.index or 0
    if index not in _loaded_devices:
        _load(index)
    # torch.cuda.current_stream builds an object for the same number, ten times slower.
    return index, torch._C._cuda_getCurrentRawStream(index)


def _record_function(op: str, capability: int) -> Callable[..., int]:
    _function(op, capability)
    # Looked up by name, a library gives a function object of its own, whose argument types disturb no other caller.
    function = _library()[f"sm70_{op}_cuda"]
    function.argtypes = (c_void_p, c_int64, c_int, c_void_p, c_void_p, c_int64)
    _record_functions[op, capability, _emulation is not None] = function
    return function


def _function(op: str, capability: int) -> Callable[..., int]:
    library = _library()
    found = loader.capability_of(library, f"{op}_cuda")
    if found < capability:
        raise loader.NativeLibraryError(
            f"native op {op}_cuda needs capability {capability}, the library has {found}: "
            "rebuild: python -m native.build"
        )
    function: Callable[..., int] = getattr(library, f"sm70_{op}_cuda")
    _functions[op, capability, _emulation is not None] = function
    return function


def _load(device: int) -> None:
    if _emulation is not None or device in _loaded_devices:
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"kernels are not loaded on device {device}: call native.ops_cuda.load first, not in a capture"
        )
    message = _message
    if _library().sm70_cuda_load(device, message.buffer, message.size) != 0:
        raise RuntimeError(message.buffer.value.decode())
    _loaded_devices.add(device)


@functools.cache
def _multiprocessors_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of ``device``; a V100's where the ops are emulated."""
    return _multiprocessors_of(device) if device.type == "cuda" else 80


def capabilities() -> dict[str, int]:
    """Capability number of every op of the library the CUDA ops run in."""
    return loader.capabilities_of(_library())


def _library() -> ctypes.CDLL:
    return loader.library() if _emulation is None else _emulation


def _native(argument: object) -> object:
    if isinstance(argument, torch.Tensor):
        return c_void_p(argument.data_ptr())
    return c_void_p(None) if argument is None else argument
