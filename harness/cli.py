"""``python -m harness``: the only module that prints or exits.

Each command is one function that gives an exit code. What ``run`` needs is in the standard library; the other
commands import their libraries when they are called.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from harness.ab import command as ab
from harness.commands import evidence, exchange, history, machine, nightly
from harness.commands.arguments import build_parser, split_arguments
from harness.commands.progress_line import ProgressLine
from harness.errors import HarnessError, Interrupted, UsageError
from harness.gate import decide_run
from harness.power import command as power
from harness.run import ScopeRun, known_scopes, mark_not_run, run_scopes
from harness.rundir import SCOPE_NAME, SUITES, new_run_id, open_run
from harness.typed import typed
from harness.verdict import ExitCode


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    own, pytest_args = split_arguments(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    options = parser.parse_args(own)
    if pytest_args and options.command not in ("run", "lease"):
        parser.error(f"harness {options.command} takes nothing after --")
    options.pytest_args, options.own = pytest_args, own
    signal.signal(signal.SIGTERM, _as_interrupt)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": run_command,
        "seal": lambda chosen: evidence.seal_command(chosen, print),
        "verify": lambda chosen: evidence.verify_command(chosen, print),
        "compare": lambda chosen: evidence.compare_command(chosen, print),
        "accept": lambda chosen: evidence.accept_command(chosen, print),
        "report": lambda chosen: evidence.report_command(chosen, print, say),
        "history": lambda chosen: _over_many(history.history_command, chosen),
        "nightly": lambda chosen: _over_many(nightly.nightly_command, chosen),
        "merge": lambda chosen: evidence.merge_command(chosen, print),
        "export": lambda chosen: exchange.export_command(chosen, print),
        "import": lambda chosen: exchange.import_command(chosen, print),
        "attest": lambda chosen: exchange.attest_command(chosen, print),
        "ingest": lambda chosen: exchange.ingest_command(chosen, print, say),
        "audit": lambda chosen: exchange.audit_command(chosen, print),
        "selftest": selftest_command,
        "lease": lambda chosen: machine.lease_command(chosen, pytest_args, say, print),
        "doctor": lambda chosen: machine.doctor_command(chosen, print),
        "ab": lambda chosen: ab.ab_command(chosen, say, print),
        "power": lambda chosen: power.power_command(chosen, say, print),
    }
    collecting = gc.isenabled()
    gc.disable()  # records live to the end and hold no cycles: looking for some is half the time of a large bundle
    try:
        code = commands[options.command](options)
        sys.stdout.flush()
    except HarnessError as error:
        say(f"harness: {error}")
        if error.hint:
            say(f"  -> {error.hint}")
        code = error.code
    except KeyboardInterrupt:
        say("harness: interrupted; what was being written is whole or absent")
        say(f"  -> go on with: {_again(options)}")
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:  # `harness report ... | head`
        sys.stderr.close()
        code = ExitCode.OK
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would be complained of at exit
        say(f"harness: the output cannot be written: {error.strerror}")
        say("  -> make room or write elsewhere")
        code = ExitCode.USAGE
    finally:
        if collecting:
            gc.enable()
    raise SystemExit(int(code))


def _again(options: argparse.Namespace) -> str:
    """The command line that takes an interrupted command up again, every option as it was given."""
    own = list(options.own)
    if options.command == "run":
        own += [] if options.resume else ["--resume"]
        own += [] if "--run-dir" in " ".join(own) or not options.run_dir else ["--run-dir", str(options.run_dir)]
    after = ["--", *options.pytest_args] if options.pytest_args else []
    return typed(*own, *after)


def _as_interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def say(text: str) -> None:
    """A line for a person, on stderr: stdout holds results only."""
    print(text, file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Words that stay on their line, for progress on a terminal."""
    print(text, end="", file=sys.stderr, flush=True)


# ---- run ------------------------------------------------------------------------------------------------------------


def run_command(options: argparse.Namespace) -> int:
    """``harness run``."""
    root = Path.cwd()
    not_run = dict(_scope_and_reason(text) for text in options.not_run)
    names = list(dict.fromkeys([*options.scopes, *not_run]))
    _check_scopes([name for name in names if name not in not_run], options.suites)
    if options.resume and options.run_dir is None:
        raise UsageError("--resume does not say which run", "name its folder with --run-dir")
    run_dir = options.run_dir = options.run_dir or Path("artifacts/runs") / new_run_id()
    requests = [
        ScopeRun(name, root, options.suites, options.pytest_args, options.timeout)
        for name in names
        if name not in not_run
    ]
    if options.resume and not (run_dir / "run.json").exists():
        say(f"{run_dir} holds no run yet: there is nothing to resume, every scope runs")
    line = ProgressLine(sys.stderr.isatty(), tell)
    try:
        with (
            open_run(run_dir, options.suites) as run,
            machine.watch([r.scope for r in requests], options, say) as watch,
        ):
            requests = [replace(request, watch=watch) for request in requests]
            summaries = [mark_not_run(name, reason, run, root) for name, reason in not_run.items()]
            summaries += run_scopes(
                requests, run, line.show, resume=options.resume, reruns=options.rerun_failed, done=line.end
            )
    except Interrupted as error:
        line.clear()
        raise Interrupted(str(error), f"go on with: {_again(options)}") from error
    decision = decide_run(summaries)
    for reason in decision.reasons:
        say(f"  {reason}")
    print(run_dir)
    if decision.code is ExitCode.USAGE:
        return decision.code
    suites = [] if options.suites == SUITES else ["--suites", str(options.suites)]
    say(f"seal it with: {typed('seal', str(run_dir), *suites)}")
    return decision.code


def _scope_and_reason(text: str) -> tuple[str, str]:
    scope, equals, reason = text.partition("=")
    if not equals or not reason.strip() or not SCOPE_NAME.fullmatch(scope):
        raise UsageError(f"--not-run {text!r}: give SCOPE=REASON, as in 'latency=no model data'")
    return scope, reason.strip()


def _check_scopes(names: Sequence[str], suites: Path) -> None:
    known = known_scopes(suites) if names else []
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"there is no scope {', '.join(unknown)} in {suites}", f"known are {', '.join(known) or 'none'}"
        )


# ---- what looks at many bundles, and at ourselves --------------------------------------------------------------------


def _over_many(command: Callable[..., int], options: argparse.Namespace) -> int:
    """``harness history`` and ``harness nightly``: one result out of many bundles."""
    color, width = evidence.screen()
    with evidence.output(options.output, print) as write:
        return command(options, write, color=color, width=width)


def selftest_command(options: argparse.Namespace) -> int:
    """``harness selftest``."""
    from harness.selftest import Result, selftest

    def tell(result: Result) -> None:
        word = "ok  " if result.ok else "FAIL"
        print(f"{word} {result.fault:<31} exit {result.got}, must be {int(result.expected)}  {result.said}", flush=True)

    results = selftest(_call, options.keep, tell)
    failed = [result for result in results if not result.ok]
    print(f"{len(results) - len(failed)} of {len(results)} faults gave the exit code they must")
    return ExitCode.REGRESSION if failed else ExitCode.OK


def _call(root: Path, arguments: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """One command in this process, from another folder, with its words caught: how selftest drives us."""
    said = io.StringIO()
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with contextlib.chdir(root), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(arguments)
    except SystemExit as error:
        return int(error.code or 0), said.getvalue()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
