"""Taps: copies of a forward's residual stream after some of the target's layers, for a draft model to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.model.device import ModelDevice
from engine.ops.bound import Step


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """``rows`` [T, taps * H]: side by side, in the order of ``layer_ids``, what left each of those layers.

    Layer ids count from 0: tap i is the *output* of layer i, which is the stream that enters layer i + 1. Every forward
    writes its rows over those of the last one.
    """

    layer_ids: tuple[int, ...]
    rows: torch.Tensor

    @classmethod
    def allocate(cls, layer_ids: Sequence[int], max_rows: int, hidden_size: int, device: ModelDevice) -> Taps:
        """Room for forwards of up to ``max_rows`` rows; no layers, no room."""
        return cls(tuple(layer_ids), device.zeros(max_rows, len(layer_ids) * hidden_size))

    def first(self, rows: int) -> Taps:
        """The same memory, cut to ``rows`` rows."""
        return Taps(self.layer_ids, self.rows[:rows])

    def behind(self, layer: int, hidden: torch.Tensor) -> list[Step]:
        """What copies the stream [T, H] that leaves ``layer``: one step, or none where nobody taps it."""
        if layer not in self.layer_ids:
            return []
        width = hidden.shape[1]
        start = self.layer_ids.index(layer) * width
        place = self.rows[:, start : start + width]

        def copy() -> None:
            place.copy_(hidden)

        return [copy]


NO_TAPS = Taps((), torch.zeros(0, 0))
