"""Units: which of them measure the same thing, and durations as foreign files write them. Pure."""

from __future__ import annotations

import math
import re

# unit -> (dimension, factor to the dimension's first unit)
_UNITS: dict[str, tuple[str, float]] = {
    "s": ("time", 1.0),
    "sec": ("time", 1.0),
    "secs": ("time", 1.0),
    "second": ("time", 1.0),
    "seconds": ("time", 1.0),
    "ms": ("time", 1e-3),
    "msec": ("time", 1e-3),
    "milliseconds": ("time", 1e-3),
    "us": ("time", 1e-6),
    "\u00b5s": ("time", 1e-6),  # micro sign
    "\u03bcs": ("time", 1e-6),  # Greek mu
    "usec": ("time", 1e-6),
    "microseconds": ("time", 1e-6),
    "ns": ("time", 1e-9),
    "nsec": ("time", 1e-9),
    "nanoseconds": ("time", 1e-9),
    "min": ("time", 60.0),
    "m": ("time", 60.0),
    "h": ("time", 3600.0),
    "byte": ("size", 1.0),
    "bytes": ("size", 1.0),
    "B": ("size", 1.0),
    "KiB": ("size", 1024.0),
    "MiB": ("size", 1024.0**2),
    "GiB": ("size", 1024.0**3),
    "kB": ("size", 1e3),
    "MB": ("size", 1e6),
    "GB": ("size", 1e9),
    "token/s": ("rate of tokens", 1.0),
    "tok/s": ("rate of tokens", 1.0),
    "tokens/s": ("rate of tokens", 1.0),
}
_SPACES = "'_ \u00a0\u2009\u202f"
_SPACES = "'_ \u00a0\u2009\u202f"
_DURATION = re.compile(rf"([+-]?[\d.,{_SPACES}]*\d[\d.,]*(?:[eE][+-]?\d+)?)\s*([A-Za-z\u00b5\u03bc]*)")
_PLAIN = re.compile(r"\d{1,9}\.?\d{0,9}", re.ASCII)  # how most files write seconds


def same_dimension(one: str, other: str) -> bool:
    """Whether values in the two units can be converted into each other; unknown units only into themselves."""
    if one == other:
        return True
    return one in _UNITS and other in _UNITS and _UNITS[one][0] == _UNITS[other][0]


def convert(value: float, unit: str, to: str) -> float:
    """``value`` in ``unit`` as a number of ``to``; ``ValueError`` where the two measure different things."""
    if unit == to:
        return value
    if not same_dimension(unit, to):
        raise ValueError(f"{unit!r} cannot be converted to {to!r}")
    return value * _UNITS[unit][1] / _UNITS[to][1]


def parse_duration(text: str | None) -> float | None:
    """Seconds from what a foreign report calls a time; ``None`` where it cannot be known.

    Knows unit suffixes, decimal commas and thousands separators. ``12,345`` may be either and is therefore unknown;
    so are negative times, ``nan`` and infinities.
    """
    if text and _PLAIN.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text.strip()) if text and len(text) <= 64 else None
    if match is None:
        return None
    number = parse_number(match[1])
    unit = match[2] or "s"
    if number is None or _UNITS.get(unit, ("", 0.0))[0] != "time":
        return None
    seconds = number * _UNITS[unit][1]
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def parse_number(text: str) -> float | None:
    """A number written with ``.`` or ``,`` as decimal mark and with or without thousands separators."""
    digits = re.sub(f"[{_SPACES}]", "", text)
    commas, points = digits.count(","), digits.count(".")
    if commas and points:
        decimal = "," if digits.rindex(",") > digits.rindex(".") else "."
        if digits.count(decimal) > 1:
            return None
        grouping = "." if decimal == "," else ","
        whole, _, fraction = digits.partition(decimal)
        if not re.fullmatch(r"[+-]?\d{1,3}(" + re.escape(grouping) + r"\d{3})+", whole):
            return None
        digits = whole.replace(grouping, "") + "." + fraction
    elif commas > 1 or points > 1:
        mark = "," if commas else "."
        if not re.fullmatch(r"[+-]?\d{1,3}(" + re.escape(mark) + r"\d{3})+", digits):
            return None
        digits = digits.replace(mark, "")
    elif commas:
        whole, _, fraction = digits.partition(",")
        if len(fraction) == 3 and whole.lstrip("+-0"):
            return None
        digits = f"{whole}.{fraction}"
    try:
        number = float(digits)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
