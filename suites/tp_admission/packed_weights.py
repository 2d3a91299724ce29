"""Random packed weights of any shape, what they mean in fp64, and how far a product is from the exact one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.linear.nvfp4 import Nvfp4Matrix
from suites.oracles import int4
from suites.oracles.arrays import F64, U8
from suites.oracles.fp8 import E4M3

_ROWS_AT_ONCE = 515
_BYTES = np.arange(256)
# What the two codes of a byte are (even k, odd k), as one element of 16 bytes so that both are taken at once.
_PAIRS = np.stack([int4.e2m1((half).astype(np.uint8)) for half in (_BYTES & 0x0F, _BYTES >> 4)], -1).view(np.complex128)
_SCALES = E4M3.table()


@dataclass(frozen=True, slots=True, eq=False)
class Nvfp4Weights:
    """Codes [n, k / 2] and E4M3 block scale codes [n, k / 16], as a checkpoint stores them."""

    packed: U8
    scales: U8
    global_scale: float

    @classmethod
    def random(cls, rng: np.random.Generator, n: int, k: int, global_scale: float = 2.0**-9) -> Nvfp4Weights:
        """Codes of all kinds; scales over six binades, as different blocks of a trained matrix have."""
        packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
        return cls(packed, rng.integers(0x28, 0x58, (n, k // 16), dtype=np.uint8), global_scale)

    def rows(self, at: npt.NDArray[np.int64] | slice) -> Nvfp4Weights:
        """Some rows, in the order of ``at``."""
        return Nvfp4Weights(self.packed[at], self.scales[at], self.global_scale)

    def matrix(self) -> Nvfp4Matrix:
        """For the engine."""
        scales = torch.from_numpy(self.scales.copy()).view(torch.float8_e4m3fn)
        return Nvfp4Matrix(torch.from_numpy(self.packed.copy()), scales, self.global_scale)

    def product(self, x: F64) -> F64:
        """``x [M, K] @ W.T`` in fp64, some rows of W at a time."""
        parts = [x @ self._values(slice(start, end)).T for start, end in _spans(len(self.packed))]
        return np.concatenate(parts, axis=1)

    def _values(self, rows: slice) -> F64:
        """As `int4.nvfp4`, which a case holds it to, a byte at a time: millions of weights in a second."""
        packed = self.packed[rows]
        values: F64 = _PAIRS.take(packed).view(np.float64).reshape(len(packed), -1, int4.NVFP4_BLOCK)
        values *= (_SCALES.take(self.scales[rows]) * self.global_scale)[:, :, None]
        return values.reshape(len(values), -1)

    def misread(self, alignment: int) -> Nvfp4Weights:
        """What a kernel reads where the packed scales are padded to ``alignment`` columns instead of 32."""
        read = int4.misread_scales(self.scales.T.astype(np.float64), alignment)
        return Nvfp4Weights(self.packed, np.ascontiguousarray(read.T.astype(np.uint8)), self.global_scale)


def _spans(rows: int) -> list[tuple[int, int]]:
    return [(start, min(start + _ROWS_AT_ONCE, rows)) for start in range(0, rows, _ROWS_AT_ONCE)]
