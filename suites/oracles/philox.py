"""Philox-4x32-10 (Salmon et al., 2011) for many keys at once, written from the paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


def blocks(counter: tuple[int, int, int, int], keys: U64) -> U64:
    """The first 64 bits of the block of ``counter`` (four 32-bit words) under each of ``keys`` u64 [N]."""
    c0, c1, c2, c3 = (np.full(len(keys), word, dtype=np.uint64) for word in counter)
    k0, k1 = keys & _LOW, keys >> _HALF
    for _ in range(10):
        product_0 = c0 * np.uint64(0xD251_1F53)
        product_1 = c2 * np.uint64(0xCD9E_8D57)
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0 = (k0 + np.uint64(0x9E37_79B9)) & _LOW
        k1 = (k1 + np.uint64(0xBB67_AE85)) & _LOW
    out: U64 = c0 | (c1 << _HALF)
    return out
