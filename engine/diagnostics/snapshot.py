"""What a sequence left in the caches, layer by layer, and where two such records first differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.loading import LoadedModel
from engine.model.hybrid_config import LayerKind
from engine.state.sequence import SequenceState

Snapshot = dict[str, torch.Tensor]
"""Copies by name, in the order in which a forward computes them."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first tensor that differs: how many elements, the first one's coordinate and both values, the largest gap."""

    tensor: str
    coordinate: tuple[int, ...]
    one: float
    other: float
    count: int
    elements: int
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.tensor}: {self.count} of {self.elements} elements differ, first at {list(self.coordinate)}: "
            f"{self.one!r} against {self.other!r}, largest difference {self.largest:.3g}"
        )


def snapshot(model: LoadedModel, sequence: SequenceState) -> Snapshot:
    """Keys and values of every committed position, and the recurrent states that the sequence stands at.

    Keys and values are [T, Hkv, D], convolution windows [W - 1, C], matrices [Hv, dv, dk].
    """
    size = model.pool.block_size
    positions = torch.arange(sequence.num_computed)
    blocks = torch.tensor(sequence.block_table, dtype=torch.int64)[positions // size]
    found: Snapshot = {}
    attention = recurrent = 0
    for index, kind in enumerate(model.layers):
        if kind is LayerKind.ATTENTION:
            found[f"layer {index} keys"] = model.cache.keys(attention)[blocks, positions % size]
            found[f"layer {index} values"] = model.cache.values(attention)[blocks, positions % size]
            attention += 1
        elif model.states is not None and sequence.recurrent is not None:
            slot = sequence.recurrent.current
            found[f"layer {index} convolution window"] = model.states.conv(recurrent)[slot].clone()
            found[f"layer {index} recurrent state"] = model.states.matrix(recurrent)[slot].clone()
            recurrent += 1
    return found


def first_difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> Difference | None:
    """None where all is equal: bit for bit in the same dtype, by value where the dtypes differ.

    Raises ``ValueError`` for records of different tensors or shapes: they are not of the same model and text.
    """
    if list(one) != list(other):
        raise ValueError(f"records of {len(one)} and {len(other)} tensors with different names; allowed: the same ones")
    for name, left in one.items():
        right = other[name]
        if left.shape != right.shape:
            raise ValueError(f"{name}: shapes {tuple(left.shape)} and {tuple(right.shape)}; allowed: the same")
        differ = _bits(left) != _bits(right) if left.dtype == right.dtype else left.double() != right.double()
        if differ.any():
            coordinate = tuple(int(axis[0]) for axis in differ.nonzero(as_tuple=True))
            gap = (left.double() - right.double()).abs()
            return Difference(
                tensor=name,
                coordinate=coordinate,
                one=float(left[coordinate]),
                other=float(right[coordinate]),
                count=int(differ.sum()),
                elements=differ.numel(),
                largest=float(gap.nan_to_num(nan=torch.inf).max()),
            )
    return None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that NaN equals itself and -0 differs from +0."""
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])
