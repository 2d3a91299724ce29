"""The recurrent states of a hybrid model: a row a slot, of all recurrent layers; `engine.state.slots` gives them."""

from __future__ import annotations

import torch


class RecurrentStates:
    """Convolution windows ``[layers, slots, width - 1, channels]`` and matrices ``[layers, slots, Hv, dv, dk]``, f32.

    Slot 0 holds zeros for good: a fresh sequence starts from it. The other slots are read only after they were written.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        *,
        conv_width: int,
        conv_dim: int,
        value_heads: int,
        value_dim: int,
        key_dim: int,
    ) -> None:
        self._conv = torch.zeros(num_layers, num_slots, conv_width - 1, conv_dim)
        self._matrix = torch.zeros(num_layers, num_slots, value_heads, value_dim, key_dim)

    def conv(self, layer: int) -> torch.Tensor:
        """Windows of one recurrent layer: the rows in front of the next token, oldest first."""
        return self._conv[layer]

    def matrix(self, layer: int) -> torch.Tensor:
        """Matrices of one recurrent layer."""
        return self._matrix[layer]
