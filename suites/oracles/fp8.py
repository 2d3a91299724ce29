"""E4M3 (the "fn" flavour) and E5M2 from their bit definitions: exact tables; round to nearest even, saturating."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from suites.oracles.arrays import F64, U8, Floats


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """One 8-bit float. ``max_code`` is the largest finite magnitude; codes above it (7 bits) are not finite numbers."""

    name: str
    mantissa_bits: int
    bias: int
    max_code: int
    inf_code: int | None

    def magnitude(self, code: int) -> Fraction:
        """The exact value of a finite 7-bit magnitude code."""
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        if exponent == 0:
            return Fraction(mantissa) * Fraction(2) ** (1 - self.bias - self.mantissa_bits)
        significand = Fraction(mantissa + (1 << self.mantissa_bits))
        return significand * Fraction(2) ** (exponent - self.bias - self.mantissa_bits)

    def table(self) -> F64:
        """Values of all 256 codes as fp64 (exact); NaN and infinities where the format has them."""
        values = np.full(256, np.nan)
        for code in range(self.max_code + 1):
            values[code] = float(self.magnitude(code))
            values[code | 0x80] = -values[code]
        if self.inf_code is not None:
            values[self.inf_code], values[self.inf_code | 0x80] = np.inf, -np.inf
        return values


E4M3 = Fp8Format("e4m3", mantissa_bits=3, bias=7, max_code=0x7E, inf_code=None)
E5M2 = Fp8Format("e5m2", mantissa_bits=2, bias=15, max_code=0x7B, inf_code=0x7C)
FORMATS = (E4M3, E5M2)
CANONICAL_NAN = 0x7F


def decode(codes: U8, fmt: Fp8Format, scale: float = 1.0) -> F64:
    """``table[code] * scale`` in fp64."""
    out: F64 = fmt.table()[codes] * scale
    return out


def encode(values: Floats, fmt: Fp8Format) -> U8:
    """Nearest code, ties to the even code, magnitudes beyond the largest finite (infinities too) to it, NaN to 0x7F.

    Exact: magnitudes have at most 4 significant bits, so the midpoints between neighbours are exact in fp64.
    The sign of zero is kept.
    """
    x = np.asarray(values, dtype=np.float64)
    magnitudes = fmt.table()[: fmt.max_code + 1]
    midpoints = (magnitudes[:-1] + magnitudes[1:]) / 2
    absolute = np.minimum(np.abs(x), magnitudes[-1])
    below = np.searchsorted(midpoints, absolute, side="left")
    tie = np.zeros(x.shape, dtype=np.bool_)
    inside = below < midpoints.size
    tie[inside] = absolute[inside] == midpoints[below[inside]]
    codes = below + (tie & (below % 2 == 1))
    codes |= np.where(np.signbit(x), 0x80, 0)
    codes[np.isnan(x)] = CANONICAL_NAN
    out: U8 = codes.astype(np.uint8)
    return out
