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
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from harness.ab import command as ab
from harness.commands import evidence, exchange, history, machine, nightly
from harness.commands.arguments import build_parser, split_arguments
from harness.commands.progress_line import ProgressLine
from harness.errors import HarnessError, Interrupted, UsageError, file_error
from harness.gate import decide_run
from harness.power import command as power
from harness.run import ScopeRun, known_scopes, mark_not_run, run_scopes
from harness.rundir import SCOPE_NAME, SUITES, new_run_id, open_run
from harness.typed import typed
from harness.verdict import ExitCode

# Characters that steer a terminal: an escape in a case's name must not recolour, move or hide what stands here.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    own, pytest_args = split_arguments(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    options = parser.parse_args(own)
    if pytest_args and options.command not in ("run", "lease"):
        parser.error(f"harness {options.command} takes nothing after --")
    options.pytest_args, options.own = pytest_args, own
    signal.signal(signal.SIGTERM, _as_interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file may be called what the terminal's encoding does not hold
            stream.reconfigure(errors="backslashreplace")
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": run_command,
        "seal": lambda chosen: evidence.seal_command(chosen, show),
        "verify": lambda chosen: evidence.verify_command(chosen, show),
        "compare": lambda chosen: evidence.compare_command(chosen, show),
        "accept": lambda chosen: evidence.accept_command(chosen, show),
        "report": lambda chosen: evidence.report_command(chosen, show, say),
        "history": lambda chosen: _over_many(history.history_command, chosen),
        "nightly": lambda chosen: _over_many(nightly.nightly_command, chosen),
        "merge": lambda chosen: evidence.merge_command(chosen, show),
        "export": lambda chosen: exchange.export_command(chosen, show),
        "import": lambda chosen: exchange.import_command(chosen, show),
        "attest": lambda chosen: exchange.attest_command(chosen, show),
        "ingest": lambda chosen: exchange.ingest_command(chosen, show, say),
        "audit": lambda chosen: exchange.audit_command(chosen, show),
        "selftest": selftest_command,
        "lease": lambda chosen: machine.lease_command(chosen, pytest_args, say, show),
        "doctor": lambda chosen: machine.doctor_command(chosen, show),
        "ab": lambda chosen: ab.ab_command(chosen, say, show),
        "power": lambda chosen: power.power_command(chosen, say, show),
    }
    collecting = gc.isenabled()
    gc.disable()  # records live to the end and hold no cycles: looking for some is half the time of a large bundle
    try:
        code = commands[options.command](options)
    except HarnessError as error:
        say(f"harness: {error}")
        if error.hint:
            say(f"  -> {error.hint}")
        code = error.code
    except KeyboardInterrupt:
        say("harness: interrupted; what was being written is whole or absent")
        say(f"  -> go on with: {_again(options)}")
        code = ExitCode.INTERRUPTED
    except OSError as error:
        told = _unusable(error)
        say(f"harness: {told}")
        say(f"  -> {told.hint or 'give another path'}")
        code = told.code
    finally:
        if collecting:
            gc.enable()
    raise SystemExit(int(code))


def _unusable(error: OSError) -> HarnessError:
    """What to say of a path that the system refuses wherever it is first looked at, or of an output that is full."""
    if error.filename is not None:  # a name that is too long, a link to itself
        return file_error(error, error.filename, "use")
    if error.errno != errno.ENOSPC:
        raise error
    _discard(sys.stdout)
    return UsageError(f"the output cannot be written: {error.strerror}", "make room or write elsewhere")


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


def show(text: str) -> None:
    """A result, on stdout."""
    _put(sys.stdout, text + "\n")


def say(text: str) -> None:
    """A line for a person, on stderr: stdout holds results only. What files brought along cannot steer a terminal."""
    _put(sys.stderr, _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text) + "\n")


def tell(text: str) -> None:
    """Words that stay on their line, for progress on a terminal."""
    _put(sys.stderr, text)


def _put(stream: TextIO | None, text: str) -> None:
    """Write at once. Whoever reads no further (``| head -1``) changes nothing about what the command does or says."""
    if stream is None:  # closed by the caller: `harness run ... >&-`
        return
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """What is written from now on goes nowhere; what is left would be complained of at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
    line = ProgressLine(sys.stderr is not None and sys.stderr.isatty(), tell)
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
    show(str(run_dir))
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
    with evidence.output(options.output, show) as write:
        return command(options, write, color=color, width=width)


def selftest_command(options: argparse.Namespace) -> int:
    """``harness selftest``."""
    from harness.selftest import Result, selftest

    def tell(result: Result) -> None:
        word = "ok  " if result.ok else "FAIL"
        show(f"{word} {result.fault:<31} exit {result.got}, must be {int(result.expected)}  {result.said}")

    results = selftest(_call, options.keep, tell)
    failed = [result for result in results if not result.ok]
    show(f"{len(results) - len(failed)} of {len(results)} faults gave the exit code they must")
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
