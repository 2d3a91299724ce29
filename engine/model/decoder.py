"""What the runner needs to know of a model, whatever its layers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.linear.adapter import AdaptedLinear
from engine.model.buffers import RowInputs
from engine.model.taps import NO_TAPS, Taps

Forward = Callable[[], object]


class Decoder(Protocol):
    """A model over its caches. It decides nothing: it binds what a forward runs to the buffers that it is given."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def attention_layers(self) -> int:
        """How many layers attend."""

    @property
    def projections(self) -> Sequence[AdaptedLinear]:
        """Every product of a forward but the logits."""

    def bind_body(self, inputs: RowInputs, hidden: torch.Tensor, *, prefill: bool, taps: Taps = NO_TAPS) -> Forward:
        """From token ids to the last layer's residual stream ``hidden`` [T, H]; fills the rows' cache slots and taps.

        ``prefill`` promises that no row but the last of a sequence names a recurrent state to keep.
        """

    def bind_head(self, hidden: torch.Tensor, normed: torch.Tensor, logits: torch.Tensor) -> Forward:
        """From residual rows [M, H] to logits f32 [M, V]; ``normed`` [M, H] is room for the final norm."""


def rope_table(positions: int, rotary_dim: int, theta: float) -> torch.Tensor:
    """cos and sin of every position and pair, float32 ``[positions, rotary_dim / 2, 2]``, rounded once from float64."""
    frequency = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = torch.arange(positions, dtype=torch.float64).outer(frequency)
    return torch.stack((angle.cos(), angle.sin()), dim=-1).float()
