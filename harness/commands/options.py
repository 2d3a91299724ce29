"""Options that several commands have: the same name, placeholder and help everywhere. Standard library only."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from harness.machine.lease import DEFAULT_WAIT_S
from harness.rundir import SUITES

BUNDLES = Path("artifacts/bundles")
BASELINES = Path("baselines")
QUARANTINE = BASELINES / "quarantine.toml"


def fraction(text: str) -> float:
    """A number between 0 and 1, both excluded, from the command line."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def seconds(text: str) -> float:
    """A length of time that ends: above zero and finite, from the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def wait(text: str) -> float:
    """How long to wait: seconds from 0, which is not at all; ``inf`` is as long as it takes."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds from 0")
    return value


def count(text: str) -> int:
    """A whole number from 0 from the command line."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def core_numbers(text: str) -> tuple[int, ...]:
    """``4,5`` as core numbers; nothing for the empty string."""
    parts = text.split(",") if text else []
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: give core numbers, as in 4,5")
    return tuple(map(int, parts))


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """``--run-dir``, where a run is written."""
    parser.add_argument(
        "--run-dir", type=Path, metavar="RUN_DIR", help="the run's folder (default: a new one under artifacts/runs)"
    )


def add_suites(parser: argparse.ArgumentParser) -> None:
    """``--suites``, where scopes are looked for."""
    parser.add_argument(
        "--suites", type=Path, default=SUITES, metavar="DIR", help="the folder of the scopes (default: %(default)s)"
    )


def add_out(parser: argparse.ArgumentParser, default: Path = BUNDLES) -> None:
    """``--out``, the folder in which a command makes a new folder."""
    parser.add_argument(
        "--out",
        type=Path,
        default=default,
        metavar="DIR",
        help="make the result's folder in DIR (default: %(default)s)",
    )


def add_output(parser: argparse.ArgumentParser, forms: Sequence[str] = ()) -> None:
    """``-o``, the one file that a command writes, and ``--format`` where it knows several ``forms``."""
    if forms:
        parser.add_argument("--format", choices=forms, default="text", help="form of the result (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of to the terminal")


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """``--baselines``, the folder of accepted results."""
    parser.add_argument(
        "--baselines", type=Path, default=BASELINES, metavar="DIR", help="accepted results (default: %(default)s)"
    )


def add_quarantine(parser: argparse.ArgumentParser, default: Path | None) -> None:
    """``--quarantine``, the list of cases whose failures do not gate."""
    parser.add_argument(
        "--quarantine",
        type=Path,
        default=default,
        metavar="FILE",
        help=f"cases whose failures do not gate (default: {default or 'none'})",
    )


def add_margin(parser: argparse.ArgumentParser, default: float) -> None:
    """``--margin``, below which a change of a time does not matter."""
    parser.add_argument(
        "--margin",
        type=fraction,
        default=default,
        metavar="FRACTION",
        help="least relative change of a time that counts (default: %(default)s)",
    )


def add_strict(parser: argparse.ArgumentParser) -> None:
    """``--strict`` of commands that judge times."""
    parser.add_argument("--strict", action="store_true", help="end with exit code 5 where a time is undecided")


def add_lease(parser: argparse.ArgumentParser, what: str) -> None:
    """``--lease`` and ``--lease-timeout``; ``what`` says in words what ``auto`` holds."""
    parser.add_argument(
        "--lease", choices=("auto", "none"), default="auto", help=f"auto: {what} (default: %(default)s)"
    )
    parser.add_argument(
        "--lease-timeout",
        type=wait,
        default=DEFAULT_WAIT_S,
        metavar="SECONDS",
        help="longest wait for the lease (default: %(default)g)",
    )
