"""Data for the kernel cases: seeded, and hostile where a kernel should not look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from suites.oracles import fp8
from suites.oracles.arrays import F64, I64, U8
from suites.targets import Target, f64

F32 = npt.NDArray[np.float32]

# SmolLM2-135M: the model that the suites run for real.
HIDDEN, MLP, Q_HEADS, KV_HEADS, HEAD_DIM, VOCAB = 576, 1536, 9, 3, 64, 49152
FP8_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
QKV = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM


def generator(*key: int) -> np.random.Generator:
    """A generator that depends only on the case's own numbers."""
    return np.random.default_rng([20260901, *key])


def normal(rng: np.random.Generator, *shape: int, sigma: float = 1.0) -> F32:
    """float32 N(0, sigma^2), exactly representable in fp16 so that every device starts from the same numbers."""
    values = rng.normal(scale=sigma, size=shape)
    return values.astype(np.float16).astype(np.float32)


def q4_1_blocks(rng: np.random.Generator, n: int, k: int) -> U8:
    """Raw GGUF blocks ``[n, k/32, 20]`` with every code, weights of about +-0.2."""
    scales = rng.uniform(0.005, 0.03, size=(n, k // 32, 1)).astype("<f2")
    minima = (-8 * scales.astype(np.float32) + rng.normal(scale=0.01, size=scales.shape)).astype("<f2")
    nibbles = rng.integers(0, 256, size=(n, k // 32, 16), dtype=np.uint8)
    return np.concatenate([scales.view(np.uint8), minima.view(np.uint8), nibbles], axis=-1)


def q8_0_blocks(rng: np.random.Generator, n: int, k: int) -> U8:
    """Raw GGUF blocks ``[n, k/32, 34]``, codes -128..127, weights of about +-0.2."""
    scales = rng.uniform(0.0005, 0.002, size=(n, k // 32, 1)).astype("<f2")
    codes = rng.integers(0, 256, size=(n, k // 32, 32), dtype=np.uint8)
    return np.concatenate([scales.view(np.uint8), codes], axis=-1)


def cos_sin_table(positions: int, rotary: int, base: float = 100000.0) -> F32:
    """``[positions, rotary/2, 2]`` of cosines and sines, float32."""
    angles = np.arange(positions)[:, None] / base ** (np.arange(0, rotary, 2) / rotary)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Paged:
    """A paged cache whose pages lie in a shuffled order, with ``poison`` everywhere but in live tokens.

    ``k, v`` are the strided views of one ``[blocks, 2, block_size, Hkv, D]`` allocation.
    """

    k: torch.Tensor
    v: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor


def paged(
    rng: np.random.Generator,
    target: Target,
    lengths: tuple[int, ...],
    block_size: int,
    kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype | None = None,
    poison: float = float("nan"),
    spare_blocks: int = 3,
) -> Paged:
    """Fill a cache for sequences of ``lengths``; unused table entries name a block that is all poison."""
    needed = [-(-length // block_size) for length in lengths]
    total = sum(needed) + spare_blocks
    order: I64 = rng.permutation(total)
    storage = np.full((total, 2, block_size, kv_heads, head_dim), poison, dtype=np.float32)
    table = np.full((len(lengths), max(1, *needed) + 1), order[-1], dtype=np.int32)
    used = 0
    for row, (length, blocks) in enumerate(zip(lengths, needed, strict=True)):
        table[row, :blocks] = order[used : used + blocks]
        used += blocks
        for index in range(blocks):
            live = min(block_size, length - index * block_size)
            storage[table[row, index], :, :live] = normal(rng, 2, live, kv_heads, head_dim)
    cache = target.put(storage, dtype)
    return Paged(cache[:, 0], cache[:, 1], target.put(table), target.put(np.array(lengths, dtype=np.int32)))


def fp8_tensor(codes: U8, fmt: str, target: Target) -> torch.Tensor:
    """8-bit codes as a tensor of torch's FP8 dtype on the device."""
    return torch.from_numpy(codes.copy()).view(FP8_DTYPES[fmt]).to(target.name)


def as_fp8(pages: Paged, name: str, scales: tuple[float, float]) -> tuple[Paged, F64, F64]:
    """``pages`` in an FP8 cache, encoded by the oracle as value / scale, and the keys and values it decodes to."""
    fmt = next(fmt for fmt in fp8.FORMATS if fmt.name == name)
    codes = [fp8.encode(f64(part) / scale, fmt) for part, scale in zip((pages.k, pages.v), scales, strict=True)]
    cache = torch.from_numpy(np.stack(codes, axis=1)).view(FP8_DTYPES[name]).to(pages.k.device)
    keys, values = (fp8.decode(part, fmt, scale) for part, scale in zip(codes, scales, strict=True))
    return Paged(cache[:, 0], cache[:, 1], pages.block_table, pages.seq_lens), keys, values


def query_start(target: Target, query_lengths: tuple[int, ...]) -> torch.Tensor:
    """int32 ``[B + 1]`` running sums."""
    return target.put(np.concatenate([[0], np.cumsum(query_lengths)]).astype(np.int32))


def strided_rows(tensor: torch.Tensor, gap: int = 8) -> torch.Tensor:
    """The same values with ``gap`` NaN elements between rows."""
    wide = torch.full(
        (*tensor.shape[:-1], tensor.shape[-1] + gap), float("nan"), dtype=tensor.dtype, device=tensor.device
    )
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]
