"""The command line's grammar: every option by name, an unknown one is an error, and each help text shows examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from harness import __version__
from harness.ab import command as ab
from harness.commands import exchange, history, machine, nightly, options
from harness.power import command as power
from harness.run import DEFAULT_TIMEOUT_S
from harness.typed import typed

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"
_REPORT_FORMS = ("text", "markdown", "html", "json", "junit")
_FORMS = "a sealed bundle, a run folder, a baselines folder, or a baseline's .json"
_OVERVIEW = """\
the usual way:
  harness run kernels sampling          one pytest process per scope; prints the run folder
  harness seal artifacts/runs/ID        seal, compare with baselines/, print the verdict
  harness verify artifacts/bundles/NAME check somebody else's bundle
  harness compare BASE HEAD             any two bundles, runs or baselines
  harness accept A B --reason '...'     move the baseline on purpose
  harness history artifacts/bundles     what changed over many bundles
  harness nightly artifacts/bundles     what the latest nights agree in, and the issue about it
  harness ab main HEAD                  is HEAD slower than main, or is it noise?
  harness doctor                        what on this machine will spoil a measurement
  harness lease run -- COMMAND          hold the GPUs, or the CPU, exclusively meanwhile

exit codes: 0 ok, 1 regression, 2 usage, 3 evidence broken, 4 nothing comparable, 5 undecided (only with --strict),
130 interrupted
"""


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Ours, and those after ``--``, which are pytest's (or the command that `lease run` runs)."""
    own = list(arguments)
    if "--" not in own:
        return own, ()
    at = own.index("--")
    return own[:at], tuple(own[at + 1 :])


class _Parser(argparse.ArgumentParser):
    def __init__(self, **keywords: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **keywords)
        self.epilog = f"{(self.epilog or '').rstrip()}\n\n`harness` stands for: {typed()}"


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m harness``."""
    parser = _Parser(
        prog="harness",
        description="Measure an engine from outside: run its suites, seal the evidence, compare it, decide.",
        epilog=_OVERVIEW,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _run(commands)
    _seal(commands)
    _verify(commands)
    _compare(commands)
    _accept(commands)
    _report(commands)
    _merge(commands)
    history.add_commands(_adder(commands))
    nightly.add_commands(_adder(commands))
    exchange.add_commands(_adder(commands))
    _selftest(commands)
    machine.add_commands(_adder(commands))
    ab.add_commands(_adder(commands))
    power.add_commands(_adder(commands))
    return parser


def _adder(commands: Commands) -> Callable[..., argparse.ArgumentParser]:
    return lambda name, **words: commands.add_parser(name, **words)


def _run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run scopes, one pytest process each",
        description="Run each scope's suite in its own pytest process and keep what it showed.",
        epilog="""\
examples:
  harness run kernels                              into a new folder under artifacts/runs
  harness run kernels sampling --run-dir R         into R; more scopes may be added to R later
  harness run kernels sampling --run-dir R --resume   after Ctrl-C or a crash: finished scopes are kept
  harness run latency --not-run 'latency=no model data'   record that it could not be run, and why
  harness run kernels -- -k rms_norm -x            everything after -- goes to pytest
""",
    )
    run.add_argument("scopes", nargs="+", metavar="SCOPE", help="a subfolder of the suites folder")
    options.add_run_dir(run)
    options.add_suites(run)
    run.add_argument("--resume", action="store_true", help="pass over scopes that finished in this run folder")
    run.add_argument(
        "--not-run", action="append", default=[], metavar="SCOPE=REASON", help="do not run it; record the reason"
    )
    run.add_argument(
        "--rerun-failed",
        type=options.count,
        default=0,
        metavar="N",
        help="try failing cases again up to N times; passing then is FLAKY",
    )
    run.add_argument(
        "--timeout",
        type=options.seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="end a scope after (default: %(default)g)",
    )
    options.add_lease(run, "hold the visible GPUs, or without one the CPU for scopes that take times")


def _judging(parser: argparse.ArgumentParser) -> None:
    options.add_strict(parser)
    options.add_margin(parser, 0.03)
    parser.add_argument(
        "--level",
        type=options.fraction,
        default=0.95,
        metavar="FRACTION",
        help="confidence of intervals (default: %(default)s)",
    )
    parser.add_argument(
        "--assume-comparable",
        action="store_true",
        help="compare times although the machines' facts differ or are unknown",
    )


def _seal(commands: Commands) -> None:
    seal = commands.add_parser(
        "seal",
        help="seal a run as a bundle, compare, judge",
        description="Seal a finished run as a BagIt bundle with its comparison and report; exit with the gate's code.",
        epilog="""\
examples:
  harness seal artifacts/runs/ID                    compare with baselines/<device-key>/
  harness seal artifacts/runs/ID --against OTHER    compare with another bundle
  harness seal artifacts/runs/ID --against none     judge head on its own
  harness seal artifacts/runs/ID --carry BUNDLE:sampling   scope sampling was not run now: take it over, marked as such
""",
    )
    seal.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that `harness run` wrote")
    seal.add_argument(
        "--carry", action="append", default=[], metavar="BUNDLE:SCOPE", help="take a scope over from a bundle"
    )
    _sealing(seal)


def _sealing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--against", default="baselines", metavar="WHAT", help=f"{_FORMS}; or none (default: %(default)s)"
    )
    options.add_out(parser)
    options.add_suites(parser)
    parser.add_argument(
        "--parent", type=Path, metavar="BUNDLE", help="the bundle this one follows; its digest is recorded"
    )
    options.add_quarantine(parser, options.QUARANTINE)
    _judging(parser)


def _merge(commands: Commands) -> None:
    merge = commands.add_parser(
        "merge",
        help="one bundle out of partial ones",
        description="Merge bundles of one source and device, as several runners make them, and judge the whole.",
        epilog="""\
examples:
  harness merge kernels-bundle latency-bundle     each scope is carried over, with the digest of its bundle
  harness merge shard1 shard2 shard3              bundles of one scope: each ran some of its cases
where several shards ran one case, a failure beside a pass is FLAKY, two values of one exact figure are refused,
times are those of the first shard and never pooled; the report names every such case
""",
    )
    merge.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE", help="two or more sealed bundles")
    _sealing(merge)


def _verify(commands: Commands) -> None:
    verify = commands.add_parser(
        "verify",
        help="check a bundle",
        description="Check that a bundle is as it was sealed and that its claims follow from its contents.",
        epilog="""\
examples:
  harness verify artifacts/bundles/NAME
  harness verify NAME.zip
  harness verify NAME --digest 3f5a...   hold it against a digest you were given by other means
  (cd NAME && sha256sum -c manifest-sha256.txt)   the same digests, checked without us
""",
    )
    verify.add_argument("bundle", type=Path, metavar="BUNDLE", help="a sealed bundle, or a zip of one")
    verify.add_argument("--digest", default="", metavar="SHA256", help="the digest that its manifest must have")


def _compare(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare two bundles, runs or baselines",
        description=f"Compare BASE with HEAD; each is {_FORMS}.",
        epilog="""\
examples:
  harness compare baselines artifacts/bundles/NAME
  harness compare OLD NEW --explain 'suites/latency/test_decode.py::test_greedy'
  harness compare OLD NEW --format junit -o comparison.xml
""",
    )
    compare.add_argument("base", type=Path, metavar="BASE", help="what was there before")
    compare.add_argument("head", type=Path, metavar="HEAD", help="what is to be judged")
    options.add_quarantine(compare, None)
    compare.add_argument("--explain", metavar="ROW", help="all that is known about the rows whose id contains ROW")
    options.add_output(compare, _REPORT_FORMS)
    _judging(compare)


def _accept(commands: Commands) -> None:
    accept = commands.add_parser(
        "accept",
        help="move the baseline to what a bundle shows",
        description="Write baselines from one sealed bundle, or from two runs of one commit where there are timings.",
        epilog="""\
examples:
  harness accept A B --reason 'rms_norm reads each row once'    two runs of one commit, so that timings are backed
  harness accept A --scope kernels --reason 'ten new cases'     a scope without timings needs one
""",
    )
    accept.add_argument(
        "bundles", nargs="+", type=Path, metavar="BUNDLE", help="one sealed bundle, or two of one commit"
    )
    accept.add_argument(
        "--reason", required=True, metavar="TEXT", help="why the new values are right; kept in the ledger"
    )
    accept.add_argument("--scope", action="append", metavar="SCOPE", help="only this one (may be repeated)")
    options.add_baselines(accept)
    accept.add_argument("--without-samples", action="store_true", help="accept outcomes and exact numbers, no timings")


def _report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="show a bundle's report again",
        description="Lay out the report of a sealed bundle from its contents.",
        epilog="""\
examples:
  harness report artifacts/bundles/NAME
  harness report artifacts/bundles/NAME --format html -o report.html
""",
    )
    report.add_argument("bundle", type=Path, metavar="BUNDLE", help="a sealed bundle")
    options.add_output(report, _REPORT_FORMS)


def _selftest(commands: Commands) -> None:
    selftest = commands.add_parser(
        "selftest",
        help="show that the gate can fail",
        description="Make a small real bundle, plant one fault after the other, check that each gives its exit code.",
        epilog="""\
examples:
  harness selftest
  harness selftest --keep faults                  and look at the bundles afterwards
""",
    )
    selftest.add_argument("--keep", type=Path, metavar="DIR", help="leave the bundles there to look at")
