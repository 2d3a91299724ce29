"""Reads a GGUF file: metadata and tensors, nothing about any model.

The constants and block formats come from the ``gguf`` package; its reader does not: it makes one array object per
metadata string, which for a 49,152-word vocabulary takes seconds and hundreds of megabytes before the first token, and
it answers a truncated file with an error about array shapes. ``tests/engine/test_gguf_file.py`` holds the two readers
to the same answer.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from engine.errors import ModelFileError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
# The longest that any real file uses is 4; a larger number means that we are not where we think we are.
MAX_DIMENSIONS = 8

_SCALARS: Mapping[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as it lies in the file. ``shape`` is row-major, as torch says it; ``data`` are its raw bytes."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def blocks(self) -> npt.NDArray[np.uint8]:
        """The quantised blocks, ``[rows, blocks per row, bytes per block]``, of a two-dimensional tensor."""
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        rows, columns = self.shape
        return self.data.reshape(rows, columns // block_size, block_bytes)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A whole file. The tensors' data are views of the mapped file, read when touched."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the header and map the tensors. Raises ``ModelFileError`` for what is no whole, known GGUF file."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; give a .gguf file or a Hugging Face model folder")
    size = path.stat().st_size
    if size < len(MAGIC):
        raise ModelFileError(f"{path}: {size} bytes are no GGUF file; fetch it again")
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    cursor = _Cursor(path, mapped)
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        raise ModelFileError(
            f"{path}: starts with {magic!r}, a GGUF file starts with {MAGIC!r}; this is another format"
        )
    version = cursor.scalar("I", "the version")
    if version not in SUPPORTED_VERSIONS:
        raise ModelFileError(f"{path}: GGUF version {version}; allowed: {SUPPORTED_VERSIONS}, little-endian")
    tensor_count = cursor.scalar("Q", "the tensor count")
    metadata_count = cursor.scalar("Q", "the metadata count")
    metadata: dict[str, Any] = {}
    for index in range(metadata_count):
        key = cursor.string(f"key {index} of {metadata_count}")
        metadata[key] = _value(cursor, cursor.scalar("I", f"the type of {key}"), key)
    infos = [_tensor_info(cursor, index, tensor_count) for index in range(tensor_count)]
    alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ModelFileError(f"{path}: general.alignment is {alignment!r}; allowed: a power of two")
    data_start = -(-cursor.offset // alignment) * alignment
    return GgufFile(path, metadata, {info.name: info.map(cursor, data_start) for info in infos})


@dataclass(slots=True)
class _Cursor:
    """Walks the file and refuses to step over its end."""

    path: Path
    mapped: mmap.mmap
    offset: int = 0

    def advance(self, size: int, what: str) -> int:
        start = self.offset
        if size > len(self.mapped) - start:
            raise ModelFileError(
                f"{self.path}: truncated or damaged: {what} needs {size} bytes at offset {start}, "
                f"the file has {len(self.mapped)}; fetch it again"
            )
        self.offset = start + size
        return start

    def take(self, size: int, what: str) -> bytes:
        start = self.advance(size, what)
        return self.mapped[start : start + size]

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, self.mapped, self.advance(size, what))[0]

    def string(self, what: str) -> str:
        length = self.scalar("Q", f"the length of {what}")
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: {what} is not UTF-8 ({error}); the file is damaged") from error

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings: a vocabulary has tens of thousands, so the way through them is short."""
        found: list[str] = []
        mapped, offset, end = self.mapped, self.offset, len(self.mapped)
        while len(found) < count:
            start = offset + _LENGTH.size
            stop = start + _LENGTH.unpack_from(mapped, offset)[0] if start <= end else end + 1
            self.offset = offset
            if stop > end:
                self.string(what)  # says what is wrong
            try:
                found.append(mapped[start:stop].decode())
            except UnicodeDecodeError:
                self.string(what)
            offset = stop
        self.offset = offset
        return found


_LENGTH = struct.Struct("<Q")


def _value(cursor: _Cursor, type_number: int, key: str) -> Any:
    kind = _value_type(cursor, type_number, key)
    if kind is GGUFValueType.STRING:
        return cursor.string(key)
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind], key)
    element = _value_type(cursor, cursor.scalar("I", f"the element type of {key}"), key)
    length = cursor.scalar("Q", f"the length of {key}")
    if element is GGUFValueType.STRING:
        return cursor.strings(length, key)
    if element in _SCALARS:
        item = struct.calcsize("<" + _SCALARS[element])
        raw = cursor.take(item * length, key)
        return list(struct.unpack(f"<{length}{_SCALARS[element]}", raw))
    raise ModelFileError(f"{cursor.path}: {key} is an array of arrays, which no model that we run has")


def _value_type(cursor: _Cursor, number: int, key: str) -> GGUFValueType:
    try:
        return GGUFValueType(number)
    except ValueError as error:
        raise ModelFileError(f"{cursor.path}: {key} has value type {number}; the file is damaged or newer") from error


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int

    def map(self, cursor: _Cursor, data_start: int) -> GgufTensor:
        block_size, block_bytes = GGML_QUANT_SIZES[self.type]
        elements = 1
        for extent in self.shape:
            elements *= extent
        if self.shape[-1] % block_size:
            raise ModelFileError(
                f"{cursor.path}: {self.name} has rows of {self.shape[-1]}; {self.type.name} needs a multiple of "
                f"{block_size}"
            )
        cursor.offset = data_start + self.offset
        size = elements // block_size * block_bytes
        start = cursor.advance(size, f"tensor {self.name}")
        data = np.frombuffer(cursor.mapped, np.uint8, size, start)
        return GgufTensor(self.name, self.type, self.shape, data)


def _tensor_info(cursor: _Cursor, index: int, count: int) -> _TensorInfo:
    name = cursor.string(f"the name of tensor {index} of {count}")
    dimensions = cursor.scalar("I", f"the dimensions of {name}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ModelFileError(f"{cursor.path}: {name} has {dimensions} dimensions; the file is damaged")
    # GGUF lists the fastest dimension first.
    shape = tuple(cursor.scalar("Q", f"the shape of {name}") for _ in range(dimensions))[::-1]
    number = cursor.scalar("I", f"the type of {name}")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise ModelFileError(f"{cursor.path}: {name} has tensor type {number}; the file is damaged or newer") from error
    return _TensorInfo(name, kind, shape, cursor.scalar("Q", f"the offset of {name}"))


def dequantize(tensor: GgufTensor) -> npt.NDArray[np.float32]:
    """The tensor as float32, by the ``gguf`` package's own rule; the reference forward uses it."""
    from gguf.quants import dequantize as gguf_dequantize  # pulls in its tables: only tests and the reference need it

    rows = tensor.data.reshape(*tensor.shape[:-1], -1)
    if tensor.type is GGMLQuantizationType.F32:
        return rows.view(np.float32)
    values: npt.NDArray[np.float32] = gguf_dequantize(rows, tensor.type)
    return values
