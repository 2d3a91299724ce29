"""The recurrent states of a hybrid model: one row per slot and layer; `engine.state.slots` hands the slots out."""

from __future__ import annotations

import torch


class RecurrentStates:
    """Convolution windows ``[layers, slots, width - 1, channels]`` and f32 matrices ``[layers, slots, Hv, dv, dk]``.

    Windows hold activations: float32 on the CPU, float16 where the SM70 kernels run.

    Slot 0 always holds zeros: a fresh sequence starts from it. Any other slot is written before it is read.
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
        device: torch.device | str = "cpu",
        activations: torch.dtype = torch.float32,
    ) -> None:
        self._conv = torch.zeros(num_layers, num_slots, conv_width - 1, conv_dim, dtype=activations, device=device)
        self._matrix = torch.zeros(num_layers, num_slots, value_heads, value_dim, key_dim, device=device)

    def conv(self, layer: int) -> torch.Tensor:
        """Windows of one recurrent layer: the rows before the next token, oldest first."""
        return self._conv[layer]

    def matrix(self, layer: int) -> torch.Tensor:
        """Matrices of one recurrent layer."""
        return self._matrix[layer]
