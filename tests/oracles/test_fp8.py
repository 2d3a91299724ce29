"""Known codes, known ties, and an independent search over all midpoints in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from suites.oracles import fp8
from suites.oracles.fp8 import E4M3, E5M2, Fp8Format


@pytest.mark.parametrize(
    ("fmt", "code", "value"),
    [
        (E4M3, 0x01, 2.0**-9),
        (E4M3, 0x07, 7 * 2.0**-9),
        (E4M3, 0x08, 2.0**-6),
        (E4M3, 0x38, 1.0),
        (E4M3, 0x3C, 1.5),
        (E4M3, 0x7E, 448.0),
        (E5M2, 0x01, 2.0**-16),
        (E5M2, 0x04, 2.0**-14),
        (E5M2, 0x3C, 1.0),
        (E5M2, 0x3F, 1.75),
        (E5M2, 0x7B, 57344.0),
    ],
)
def test_known_codes(fmt: Fp8Format, code: int, value: float) -> None:
    table = fmt.table()
    assert table[code] == value
    assert table[code | 0x80] == -value


def test_special_codes() -> None:
    assert np.flatnonzero(np.isnan(E4M3.table())).tolist() == [0x7F, 0xFF]
    assert np.flatnonzero(np.isnan(E5M2.table())).tolist() == [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]
    assert E5M2.table()[[0x7C, 0xFC]].tolist() == [np.inf, -np.inf]
    assert str(E4M3.table()[0x80]) == "-0.0"


def test_e5m2_is_a_truncated_half() -> None:
    halves = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float64)
    np.testing.assert_array_equal(E5M2.table(), halves)


@pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
def test_every_finite_code_encodes_to_itself(fmt: Fp8Format) -> None:
    codes = np.array([code for code in range(256) if code & 0x7F <= fmt.max_code], dtype=np.uint8)
    assert fp8.encode(fp8.decode(codes, fmt), fmt).tolist() == codes.tolist()


@pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
def test_midpoints_go_to_the_even_code_and_their_neighbours_do_not(fmt: Fp8Format) -> None:
    for code in range(fmt.max_code):
        middle = float((fmt.magnitude(code) + fmt.magnitude(code + 1)) / Fraction(2))
        around = np.array([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf)])
        even = code if code % 2 == 0 else code + 1
        assert fp8.encode(around, fmt).tolist() == [code, even, code + 1]
        assert fp8.encode(-around, fmt).tolist() == [code | 0x80, even | 0x80, (code + 1) | 0x80]


def test_saturation_nan_and_signed_zero() -> None:
    values = np.array([464.0, 480.0, 1e30, np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0])
    assert fp8.encode(values, E4M3).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x7F, 0x00, 0x80]
    values = np.array([57344.0, 61440.0, 65504.0, np.inf, -np.inf, np.nan])
    assert fp8.encode(values, E5M2).tolist() == [0x7B, 0x7B, 0x7B, 0x7B, 0xFB, 0x7F]


def test_half_an_ulp_bound() -> None:
    values = np.random.default_rng(0).normal(size=20000)
    for fmt, bound in ((E4M3, 1 / 17), (E5M2, 1 / 9)):
        normal = np.abs(values) >= float(fmt.magnitude(1 << fmt.mantissa_bits))
        error = np.abs(fp8.decode(fp8.encode(values, fmt), fmt) - values)
        assert (error[normal] <= bound * np.abs(values[normal])).all()
