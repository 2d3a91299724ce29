"""Tensors out of the safetensors files of a Hugging Face model folder. Pickled weights are never loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelFileError
from engine.linear.nvfp4 import BLOCK, Nvfp4Matrix
from engine.parallel.shards import Piece

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Shard(Protocol):
    """What one of several ranks reads of a checkpoint."""

    def piece(self, name: str, shape: tuple[int, ...]) -> Piece | None:
        """Its piece of a stored tensor of ``shape``; None for the whole."""


class Checkpoint:
    """Takes tensors by name, once each, and checks what they are. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        ignored_prefixes: tuple[str, ...] = (),
        shard: Shard | None = None,
        only: Path | None = None,
    ) -> None:
        """Open every file that the folder names. Raises ``ModelFileError`` for one that is missing or damaged.

        Tensors below ``ignored_prefixes`` belong to parts that the caller knows and does not run. With a ``shard`` only
        its piece of each tensor is read, and shapes are those of the pieces. ``only`` names the one file to open.
        """
        self._shard = shard
        self._folder = folder
        self._files: dict[Path, Any] = {}  # safetensors' handles have no type of their own
        self._home: dict[str, Path] = {}
        for path in _files(folder) if only is None else [only]:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelFileError(f"{path}: cannot be read as safetensors: {error}; fetch it again") from error
            names: list[str] = self._files[path].keys()
            for name in names:
                if name in self._home:
                    raise ModelFileError(f"{path}: tensor {name} is in {self._home[name].name} too")
                self._home[name] = path
        self._left = {name for name in self._home if not name.startswith(ignored_prefixes)}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    @property
    def names(self) -> list[str]:
        """Every tensor that there is."""
        return sorted(self._home)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor of exactly ``shape`` as float32. E4M3 rows have a power of two each, in ``NAME_scale`` [n, 1]."""
        return self._stored(name, shape).float()

    def take_table(self, name: str, *shape: int) -> torch.Tensor:
        """One tensor of exactly ``shape``, float16 where it is stored so or as E4M3 rows, otherwise float32."""
        table = self._stored(name, shape)
        return table if table.dtype == torch.float16 else table.float()

    def _stored(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if f"{name}_scale" not in self:
            return self._finite(name, self._take(name, shape, _FLOATS))
        codes = self._take(name, shape, (torch.float8_e4m3fn,))
        # Four significant bits times a power of two: float16 holds the product exactly.
        scale = self._take(f"{name}_scale", (shape[0], 1), (torch.float32,))
        if not bool((torch.frexp(scale).mantissa == 0.5).all()):
            raise ModelFileError(f"{self._folder}: {name}_scale holds {scale.flatten()[0]}; allowed: powers of two")
        return self._finite(name, (codes.float() * scale).half())

    def take_matrix(self, name: str, n: int, k: int) -> torch.Tensor | Nvfp4Matrix:
        """A projection [n, k]: NVFP4 where block scales lie beside it (`engine.linear.nvfp4`), otherwise float32."""
        if f"{name}_scale" not in self:
            return self.take(name, n, k)
        if k % BLOCK:
            raise ModelFileError(f"{self._folder}: {name} has {k} inputs; NVFP4 needs a multiple of {BLOCK}")
        codes = self._take(name, (n, k // 2), (torch.uint8,))
        scales = self._take(f"{name}_scale", (n, k // BLOCK), (torch.float8_e4m3fn,))
        self._finite(f"{name}_scale", scales.float())
        overall = float(self._finite(f"{name}_scale_2", self._take(f"{name}_scale_2", (), (torch.float32,))))
        if overall <= 0:
            raise ModelFileError(f"{self._home[name]}: {name}_scale_2 is {overall}; allowed: a number above 0")
        return Nvfp4Matrix(codes, scales, overall)

    def _finite(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """``values``, unless one is NaN or infinite: an attention that masks it would hide it for a while."""
        if not bool(torch.isfinite(values).all()):
            raise ModelFileError(f"{self._home[name]}: {name} holds NaN or infinity; fetch or export it again")
        return values

    def _take(self, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> torch.Tensor:
        if name not in self._home:
            raise ModelFileError(f"{self._folder}: tensor {name} is missing; the checkpoint is incomplete")
        path = self._home[name]
        try:
            tensor = self.read(name)
        except SafetensorError as error:
            raise ModelFileError(f"{path}: {name} cannot be read: {error}; fetch it again") from error
        if tuple(tensor.shape) != shape:
            raise ModelFileError(f"{path}: {name} has shape {tuple(tensor.shape)}; the config asks for {shape}")
        if tensor.dtype not in dtypes:
            raise ModelFileError(f"{path}: {name} is {tensor.dtype}; allowed: {', '.join(map(str, dtypes))}")
        self._left.discard(name)
        return tensor

    def read(self, name: str) -> torch.Tensor:
        """A tensor that there is, or the shard's piece of it, as it is stored."""
        path = self._home[name]
        stored: Any = self._files[path].get_slice(name)
        piece = self._shard.piece(name, tuple(stored.get_shape())) if self._shard is not None else None
        if piece is None:
            whole: torch.Tensor = self._files[path].get_tensor(name)
            return whole
        column = (slice(None),) * piece.axis
        parts: list[torch.Tensor] = [stored[(*column, slice(rows.start, rows.stop))] for rows in piece.ranges]
        if piece.zeros:
            shape = list(parts[0].shape)
            shape[piece.axis] = piece.zeros
            parts.append(parts[0].new_zeros(shape))
        return torch.cat(parts, dim=piece.axis)

    def refuse_leftovers(self) -> None:
        """Raise ``ModelFileError`` if a tensor was not taken: leaving it out would give wrong answers."""
        if self._left:
            some = ", ".join(sorted(self._left)[:3])
            raise ModelFileError(
                f"{self._folder}: {len(self._left)} tensors have no place in this model, e.g. {some}; "
                "leaving them out would give wrong answers"
            )


def _files(folder: Path) -> list[Path]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        why = (
            f"found {pickled[0]}, and pickled weights are never loaded; convert them"
            if pickled
            else "give a model folder"
        )
        raise ModelFileError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE}; {why}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{index}: no weight_map of file names in it ({error!r})") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelFileError(f"{index}: names {name!r}, which is no file in {folder}")
    return [folder / name for name in names]
