"""Numbers and words as a reader sees them. Pure: value in, text out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from harness.model import CaseStatus, Origin, OriginKind
from harness.report.document import Tone
from harness.verdict import CaseOutcome, ExitCode, MetricOutcome

# Cf holds every character that reorders what a reader sees (U+202A to U+202E, U+2066 to U+2069, ...) and the zero-width
# ones. Cc are control codes (an escape would drive a terminal), Cs lone surrogates, Zl and Zp line breaks.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})

CASE_TONE = {
    CaseOutcome.UNCHANGED: Tone.QUIET,
    CaseOutcome.FIXED: Tone.GOOD,
    CaseOutcome.BROKEN: Tone.BAD,
    CaseOutcome.NEW: Tone.PLAIN,
    CaseOutcome.MISSING: Tone.BAD,
    CaseOutcome.SKIPPED: Tone.DOUBT,
    CaseOutcome.FLAKY: Tone.DOUBT,
    CaseOutcome.QUARANTINED: Tone.DOUBT,
}

METRIC_TONE = {
    MetricOutcome.SAME: Tone.QUIET,
    MetricOutcome.BETTER: Tone.GOOD,
    MetricOutcome.WORSE: Tone.BAD,
    MetricOutcome.CHANGED: Tone.BAD,
    MetricOutcome.NEW: Tone.PLAIN,
    MetricOutcome.MISSING: Tone.BAD,
    MetricOutcome.UNDECIDED: Tone.DOUBT,
    MetricOutcome.INCOMPARABLE: Tone.DOUBT,
}

EXIT_MEANING = {
    ExitCode.OK: "ok",
    ExitCode.REGRESSION: "regression",
    ExitCode.USAGE: "usage",
    ExitCode.EVIDENCE_BROKEN: "evidence broken",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable",
    ExitCode.UNDECIDED: "undecided under --strict",
    ExitCode.INTERRUPTED: "interrupted",
}


# Keeps a number and its unit on one line where the form can fold; renderers that cannot use it write a space.
NBSP = "\N{NO-BREAK SPACE}"


def visible(text: str) -> str:
    """``text`` on one line, each character that hides, moves or breaks text written out as ``\\x1b`` or ``\\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_written_out(char) if unicodedata.category(char) in _UNSEEN else char for char in text)


def _written_out(char: str) -> str:
    plain = {"\n": " ⏎ ", "\t": " ", "\r": ""}
    if char in plain:
        return plain[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, limit: int) -> str:
    """``text`` cut to ``limit`` characters, the cut marked by an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def short_hash(digest: str) -> str:
    """The first 12 hexadecimal digits, enough to tell two apart on a page that also holds the whole one."""
    return digest.removeprefix("sha256:")[:12]


def count(number: int, word: str, plural: str = "") -> str:
    """``1 case``, ``2,000 cases``."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def listed(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    words = list(parts)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def number(value: float) -> str:
    """Whole numbers in full with separators, others to four significant digits, tiny and huge ones as powers of ten."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3e}"
    digits = max(0, 3 - _magnitude(value))
    return f"{value:,.{digits}f}"


def _magnitude(value: float) -> int:
    """The power of ten of the leading digit, read from the rounded text so that 9.9996 counts as 10."""
    return int(f"{abs(value):.3e}".partition("e")[2])


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit; a value that is not known is an em dash, never zero."""
    if value is None:
        return "—"
    shown_unit = "" if unit in ("", "1") else f"{NBSP}{unit}"
    return f"{number(value)}{shown_unit}"


def percent(ratio: float) -> str:
    """How far a ratio head/base lies from one: ``+8.3 %``. A ratio from 3 up or below 1/3 reads better as a factor."""
    if ratio >= 3 or ratio < 1 / 3:
        return f"{ratio:.3g}×"
    change = 100 * (ratio - 1)
    shown = f"{change:+.1f}" if abs(change) >= 0.05 else "±0.0"
    return f"{shown.replace('-', '−')}{NBSP}%"


def seconds(value: float | None) -> str:
    """A duration for people: ``8 ms``, ``0.41 s``, ``12.3 s``, ``4 min 05 s``; unknown is an em dash."""
    if value is None:
        return "—"
    if value < 0.1:
        return f"{1000 * value:.3g}{NBSP}ms"
    if value < 60:
        return f"{value:.2f}{NBSP}s" if value < 10 else f"{value:.1f}{NBSP}s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def repeats(base_n: int, head_n: int) -> str:
    """The n of both sides: ``3 v 5``; one side alone is ``5``."""
    return f"{base_n}{NBSP}v{NBSP}{head_n}" if base_n and head_n else f"{base_n or head_n}"


def status_word(status: CaseStatus | None) -> str:
    return "absent" if status is None else status.value


def origin_words(origin: Origin) -> str:
    """Where results come from, as a phrase."""
    if origin.kind is OriginKind.FRESH:
        return "fresh"
    if origin.kind is OriginKind.CARRIED:
        return f"carried over from {visible(origin.detail)}"
    return f"not run: {visible(origin.detail)}"


def device_limits(device_key: str) -> tuple[str, ...]:
    """What a run under this device key can and cannot show, in words."""
    if "ptx70" in device_key:
        newer_card = (
            "A ptx70 device key means compute_70 code on a newer card: such a run checks correctness and memory-bound "
            "speed, not V100 speed."
        )
        return (newer_card,)
    if device_key.startswith("cpu"):
        return ("Everything here ran on a CPU: no GPU figure is claimed.",)
    return ("Times hold for this device key and GPU set only; sets of GPUs are not pooled.",)
