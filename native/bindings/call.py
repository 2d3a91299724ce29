"""How Python reaches a native op: one argument record, one pointer, one call.

Every C function has the shape ``int sm70_<op>_cpu(const Args*)``. All fields of an argument record are eight bytes
wide (pointer, int64, double), so the Python record and the C struct cannot disagree about padding; the library still
tells the size it expects and a record of another size is refused.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from native.loader import NativeLibraryError, library, require

_BAD_VALUE = 1  # the C side's "an argument's content is out of range"


class Args(ctypes.Structure):
    """Base of the argument records. ``OP`` is the C name without ``sm70_``, ``CAPABILITY`` the least number needed."""

    OP: ClassVar[str]
    CAPABILITY: ClassVar[int]


class Call:
    """An op bound to its buffers. Calling it runs the op and returns ``out``; it may be called any number of times.

    The buffers' *content* may change between calls (positions, slots, lengths, tables); shapes and addresses may not.

    Raises:
        ValueError: when run, if an index in a buffer is out of range.
    """

    __slots__ = ("_function", "_keep", "_pointer", "args", "out")

    def __init__(self, args: Args, out: torch.Tensor, keep: Sequence[torch.Tensor | None]) -> None:
        self._function = _function(type(args))
        self._pointer = ctypes.addressof(args)
        self._keep = keep
        self.args = args
        self.out = out

    def __call__(self) -> torch.Tensor:
        if self._function(self._pointer):
            raise_last_error()
        return self.out


class Program:
    """Calls run one after another by a single native call: a decode step costs Python one call, not two hundred."""

    __slots__ = ("_calls", "_run", "_steps")

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = tuple(calls)
        self._run = _program_function()
        pairs = [word for call in self._calls for word in (_address(type(call.args)), ctypes.addressof(call.args))]
        self._steps = (ctypes.c_uint64 * len(pairs))(*pairs)

    def __call__(self) -> None:
        """Run every call in order.

        Raises:
            ValueError: an index in a buffer of one of the calls is out of range; later calls did not run.
        """
        if self._run(self._steps, len(self._calls)):
            raise_last_error()


def raise_last_error() -> None:
    """Turn the library's last error on this thread into an exception."""
    lib = library()
    lib.sm70_last_error.restype = ctypes.c_char_p
    code = int(lib.sm70_last_error_code())
    message = (lib.sm70_last_error() or b"").decode("utf-8", "replace")
    raise ValueError(message) if code == _BAD_VALUE else RuntimeError(message)


@functools.cache
def _function(record: type[Args]) -> Callable[[int], int]:
    lib = require(record.OP, record.CAPABILITY)
    expected = int(lib.sm70_args_size(record.OP.encode()))
    if expected != ctypes.sizeof(record):
        raise NativeLibraryError(
            f"native op {record.OP} takes {expected} argument bytes, this Python passes {ctypes.sizeof(record)}: "
            "rebuild: python -m native.build"
        )
    function: Any = getattr(lib, f"sm70_{record.OP}")
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def _address(record: type[Args]) -> int:
    address = ctypes.cast(_function(record), ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None  # a function of a loaded library has an address
    return address


@functools.cache
def _program_function() -> Callable[[Any, int], int]:
    function: Any = require("program", 1).sm70_program_run
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]
