"""Counter-based random numbers: what is drawn depends on (request seed, position, purpose) and on nothing else.

There is no generator object and no state, so a request draws the same numbers alone, in a batch, on any device and
after any history of other requests. Purposes never share a counter: the noise that proposed a token says nothing
about the noise that accepts or replaces it.

The generator is Philox-4x32 with 10 rounds (Salmon et al., 2011): key = seed, counter = (index, purpose, position).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

_MASK32 = 0xFFFF_FFFF
_MULTIPLIERS = (0xD251_1F53, 0xCD9E_8D57)
_KEY_STEPS = (0x9E37_79B9, 0xBB67_AE85)
_ROUNDS = 10

UNIFORM_BITS = 52


class Purpose(IntEnum):
    """Which decision the number is for; part of the counter."""

    DRAFT = 0
    """Drawing a drafted token."""
    ACCEPT = 1
    """Accepting or rejecting a drafted token."""
    RECOVER = 2
    """Drawing the token that replaces a rejected one."""
    TARGET = 3
    """Drawing from the target: ordinary decoding and the bonus token."""


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One block of Philox-4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK32, (low >> 32) ^ c3 ^ k1, low & _MASK32
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK32, (k1 + _KEY_STEPS[1]) & _MASK32
    return c0, c1, c2, c3


def random_bits(seed: int, position: int, purpose: Purpose, index: int = 0) -> int:
    """64 random bits. `seed` and `position` are any integers below 2**64; `index` below 2**32 numbers further draws."""
    words = philox4x32(_counter(position, purpose, index), (seed & _MASK32, (seed >> 32) & _MASK32))
    return words[0] | (words[1] << 32)


def uniform(seed: int, position: int, purpose: Purpose, index: int = 0) -> float:
    """A number in the open interval (0, 1): never 0, never 1, so that `u < probability` is right at both ends."""
    return unit_interval(random_bits(seed, position, purpose, index))


def unit_interval(bits: int) -> float:
    """64 random bits as a number in (0, 1), never 0 and never 1."""
    return ((bits >> (64 - UNIFORM_BITS)) + 0.5) * 2.0**-UNIFORM_BITS


def int64_pattern(bits: int) -> int:
    """64 bits as the int64 of the same pattern: what a tensor of random bits holds."""
    return bits - (1 << 64) if bits >> 63 else bits


def random_bits_tensor(
    seeds: Sequence[int], positions: Sequence[int], purpose: Purpose, *, device: torch.device | None = None
) -> Tensor:
    """`random_bits` of each row as int64 [B] bit patterns, for `engine.ops.sampling.sampling_draw`."""
    bits = [random_bits(seed, position, purpose) for seed, position in zip(seeds, positions, strict=True)]
    return torch.tensor(list(map(int64_pattern, bits)), dtype=torch.int64, device=device)


def random_bits_at(seed: int, positions: Tensor, purpose: Purpose) -> Tensor:
    """`random_bits` of each of `positions` i64 [N], 0 and above, as int64 [N] bit patterns, computed together."""
    index, purpose_word, _, _ = _counter(0, purpose, 0)
    words = torch.full_like(positions, index), torch.full_like(positions, purpose_word)
    return _philox_bits((*words, positions & _MASK32, positions >> 32), seed)


def _counter(position: int, purpose: Purpose, index: int) -> tuple[int, int, int, int]:
    return index & _MASK32, int(purpose), position & _MASK32, (position >> 32) & _MASK32


def _philox_bits(counter: tuple[Tensor, ...], seed: int) -> Tensor:
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK32, (seed >> 32) & _MASK32
    for _ in range(_ROUNDS):
        # Wraps modulo 2**64; the mask after the arithmetic shift gives the unsigned high word.
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((high >> 32) & _MASK32) ^ c1 ^ k0, high & _MASK32
        c2, c3 = ((low >> 32) & _MASK32) ^ c3 ^ k1, low & _MASK32
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK32, (k1 + _KEY_STEPS[1]) & _MASK32
    return c0 | (c1 << 32)
