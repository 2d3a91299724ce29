from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.units import convert, parse_duration, parse_number, same_dimension


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.5", 0.5),
        ("0,5", 0.5),
        ("0,123", 0.123),
        ("1,234.5", 1234.5),
        ("1.234,5", 1234.5),
        ("1 234.5", 1234.5),
        ("67.6ms", 0.0676),
        ("12 us", 12e-6),
        ("12 \u00b5s", 12e-6),
        ("340ns", 340e-9),
        ("2 min", 120.0),
        ("1e-3", 0.001),
        ("1,234,567", 1234567.0),
        ("0", 0.0),
        (".5", 0.5),
    ],
)
def test_durations_as_foreign_files_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", None, "nan", "inf", "-0.1", "12,345", "1.2.3", "fast", "3 apples", "1,23,456", "9" * 100]
)
def test_what_cannot_be_known_is_unknown(text: str | None) -> None:
    assert parse_duration(text) is None


@given(st.floats(min_value=0, max_value=1e12, allow_nan=False))
def test_plain_numbers_come_back(value: float) -> None:
    assert parse_duration(repr(value)) == value


@given(st.text(alphabet="0123456789.,-+eE '\u00a0msun", max_size=20))
def test_no_text_raises(text: str) -> None:
    seconds = parse_duration(text)
    assert seconds is None or seconds >= 0
    parse_number(text)


def test_conversion() -> None:
    assert convert(2.0, "s", "ms") == 2000.0
    # Factors by what the units are, both ways; the micro sign and the Greek letter look alike and are two characters.
    for unit, other, factor in (
        ("min", "s", 60),
        ("h", "min", 60),
        ("s", "ms", 1e3),
        ("ms", "us", 1e3),
        ("us", "ns", 1e3),
        ("s", "\u00b5s", 1e6),
        ("s", "\u03bcs", 1e6),
        ("KiB", "B", 1024),
        ("MiB", "KiB", 1024),
        ("GiB", "MiB", 1024),
        ("kB", "B", 1000),
        ("MB", "kB", 1000),
        ("GB", "MB", 1000),
        ("tok/s", "token/s", 1),
    ):
        assert convert(3.0, unit, other) == pytest.approx(3.0 * factor, rel=1e-12)
        assert convert(3.0 * factor, other, unit) == pytest.approx(3.0, rel=1e-12)
    assert same_dimension("ms", "us")
    assert same_dimension("odd", "odd")
    assert not same_dimension("ms", "MiB")
    with pytest.raises(ValueError, match="'ms' cannot be converted to 'MiB'"):
        convert(1.0, "ms", "MiB")
