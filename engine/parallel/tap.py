"""Diagnostic taps: a copy of a tensor as it was, out of eager code, a captured graph or a traced function.

A tap gives back storage that it owns. One that returned its input would be overwritten by the next replay of a graph,
and a compiler that believes the two apart would reuse the live tensor's memory: the measuring would change what it
measures. File names carry the rank, and files of replicas are counted once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

_FILE = re.compile(r"(?P<name>.+)\.step-(?P<step>\d+)\.rank-(?P<rank>\d+)-of-(?P<size>\d+)\.npy")


# Defined by hand: the decorator that torch has for this imports a compiler, seconds of it on every rank.
_LIBRARY = torch.library.Library("sm70", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("tap(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("tap", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("sm70::tap", torch.empty_like, lib=_LIBRARY)


def tap(x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x`` in storage of its own. In a captured graph the copy is the graph's: clone it between replays."""
    copy: torch.Tensor = torch.ops.sm70.tap(x)
    return copy


@dataclass(frozen=True, slots=True, order=True)
class TapFile:
    """What a file name says."""

    name: str
    step: int
    rank: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}.step-{self.step:06d}.rank-{self.rank}-of-{self.size}.npy"


def write_tap(folder: Path, file: TapFile, tensor: torch.Tensor) -> Path:
    """Write one tapped tensor; waits for the device, so never inside what is timed. Never over another file."""
    path = folder / str(file)
    with path.open("xb") as out:
        np.save(out, tensor.detach().cpu().numpy())
    return path


@dataclass(frozen=True, slots=True)
class Sample:
    """One tensor of one step: the files that hold it. Replicas of it on several ranks are one sample, not several."""

    name: str
    step: int
    files: tuple[Path, ...]


def samples(paths: Iterable[Path]) -> list[Sample]:
    """What the files are samples of: ranks with the same bytes are replicas, ranks with different bytes are shards.

    Raises ``ValueError`` for a file that no tap wrote and for ranks of groups of different size.
    """
    found: dict[tuple[str, int, str], list[Path]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for path in sorted(paths):
        file = parse_name(path.name)
        size = sizes.setdefault((file.name, file.step), file.size)
        if size != file.size:
            raise ValueError(f"{path}: of {file.size} ranks, another file of that step of {size}; allowed: one group")
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.setdefault((file.name, file.step, content), []).append(path)
    return [Sample(name, step, tuple(files)) for (name, step, _), files in sorted(found.items())]


def parse_name(name: str) -> TapFile:
    """The record in a file name. Raises ``ValueError`` for any other name."""
    match = _FILE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: no tap wrote this; allowed: NAME.step-N.rank-R-of-S.npy")
    return TapFile(match["name"], int(match["step"]), int(match["rank"]), int(match["size"]))
