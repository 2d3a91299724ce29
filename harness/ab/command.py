"""``harness ab BASE HEAD`` and ``harness ab --bisect GOOD BAD``: the command line, and what a person is told."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from harness.commands.options import (
    BUNDLES,
    add_lease,
    add_margin,
    add_out,
    add_strict,
    core_numbers,
    fraction,
    seconds,
)

Say = Callable[[str], None]
DEFAULT_ARMS = ("greedy-plain", "greedy-lookup")


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``ab`` to the command line."""
    ab = add_parser(
        "ab",
        help="is one commit slower than another, or is it noise?",
        description="Build two commits in work trees of their own, run them in turn on the same cores or GPU, decide.",
        epilog="""\
examples:
  harness ab main HEAD                     is HEAD slower than main?
  harness ab HEAD WORKTREE                 is what I have not committed yet slower?
  harness ab HEAD HEAD                     A/A: what this machine reports where nothing changed
  harness ab main HEAD --arm sampled-plain --margin 0.02 --budget 900
  harness ab --bisect v1.0 HEAD            which commit made it slower?
  harness ab main HEAD --library native/   on a machine that cannot build: a library that was built elsewhere
exit codes: 0 not slower, 1 slower (or head's worker crashes), 2 usage or a side that does not build, 3 a repeat gave no
sound measurement, 4 other tokens or unfit: nothing to compare, 5 undecided, only with --strict
""",
    )
    ab.add_argument("base", metavar="BASE", help="a commit, a branch, or WORKTREE; with --bisect, GOOD")
    ab.add_argument("head", metavar="HEAD", help="the same; with --bisect, BAD")
    ab.add_argument("--bisect", action="store_true", help="find the first commit after BASE that is slower than BASE")
    ab.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME",
        help=f"what to time; may be repeated (default: {', '.join(DEFAULT_ARMS)})",
    )
    add_margin(ab, 0.01)
    ab.add_argument(
        "--alpha",
        type=fraction,
        default=0.05,
        metavar="FRACTION",
        help="error over all arms and looks together (default: %(default)s)",
    )
    ab.add_argument(
        "--pairs", type=_even, default=24, metavar="N", help="most pairs to run, an even number (default: %(default)s)"
    )
    ab.add_argument(
        "--budget", type=seconds, default=1800.0, metavar="SECONDS", help="stop after (default: %(default)g)"
    )
    ab.add_argument(
        "--cores", type=core_numbers, default="", metavar="N,...", help="run both sides on these (default: all usable)"
    )
    ab.add_argument(
        "--whole", action="store_true", help="one whole process after the other instead of turns round by round"
    )
    ab.add_argument(
        "--library",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="build no library, take this one (libsm70.so and its build.json) for each side whose native sources it is "
        "of; twice where the sides differ in them",
    )
    ab.add_argument(
        "--repeat-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="end a repeat after (default: %(default)g)",
    )
    ab.add_argument(
        "--keep-all", action="store_true", help="leave no block out, whatever a throttle bit or other processes say"
    )
    add_strict(ab)
    add_out(ab, Path("artifacts/ab/sessions"))
    ab.add_argument(
        "--bundles",
        type=Path,
        default=BUNDLES,
        metavar="DIR",
        help="where the bundles of the sides go (default: %(default)s)",
    )
    add_lease(ab, "hold the visible GPUs, or the CPU where there is none")
    # How a worker is started, in case another engine's tree has one: it must answer as ours does.
    ab.add_argument("--worker", default="", metavar="MODULE", help="python -m MODULE ARM... (default: our own)")


def _even(text: str) -> int:
    """Most pairs of a session: blocks have two."""
    value = int(text)
    if value < 2 or value % 2:
        raise argparse.ArgumentTypeError(f"{text} is no even number from 2")
    return value


def ab_command(options: argparse.Namespace, say: Say, show: Say) -> int:
    """``harness ab``."""
    from harness.ab.compare import Comparing
    from harness.ab.search import bisect

    options.arm = options.arm or list(DEFAULT_ARMS)
    comparing = Comparing(Path.cwd(), options, say, show)
    if options.bisect:
        return bisect(comparing, options.base, options.head)
    return comparing.compare(options.base, options.head).code
