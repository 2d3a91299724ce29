"""The paged KV cache: one tensor for all layers, cut into blocks that ``engine.state.blocks`` hands out."""

from __future__ import annotations

import math

import torch

from engine.errors import InputError

KV_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


class PagedKVCache:
    """Keys and values of every layer, ``[layers, blocks, 2, block_size, kv_heads, head_dim]``.

    The memory is not cleared: a block that was never handed out stays unmapped, so a large pool costs nothing until it
    is used. Nothing ever reads a slot before it was written.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in KV_DTYPES:
            raise InputError(f"kv-cache-dtype is {dtype!r}; allowed: {', '.join(KV_DTYPES)}")
        self.name = dtype
        self.dtype = KV_DTYPES[dtype]
        shape = (num_layers, num_blocks, 2, block_size, num_kv_heads, head_dim)
        try:
            self._data = torch.empty(shape, dtype=self.dtype, device=device)
        except RuntimeError as error:  # torch has no type of its own for it on the CPU
            size = math.prod(shape) * self.dtype.itemsize / 2**30
            raise InputError(
                f"no memory for a KV cache of {num_blocks} blocks of {block_size} tokens ({size:.0f} GiB); allowed: "
                "what the machine has: give a smaller max-model-len or kv-cache-tokens"
            ) from error

    def keys(self, layer: int) -> torch.Tensor:
        """Keys of one layer, a view ``[blocks, block_size, kv_heads, head_dim]``."""
        return self._data[layer, :, 0]

    def values(self, layer: int) -> torch.Tensor:
        """Values of one layer, a view like ``keys``."""
        return self._data[layer, :, 1]
