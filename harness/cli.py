"""``python -m harness``: the only module that prints or exits.

Each command is one function that gives an exit code. What ``run`` needs is in the standard library; the other
commands import their libraries when they are called.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NoReturn

from harness import exchange_cli, history_cli, machine_cli, nightly_cli
from harness.ab import command as ab
from harness.arguments import build_parser, split_arguments
from harness.errors import HarnessError, Interrupted, UsageError
from harness.gate import decide_run
from harness.model import ExitCode, OriginKind, Policy
from harness.power import command as power
from harness.progress_line import ProgressLine
from harness.run import ScopeRun, known_scopes, mark_not_run, run_scopes
from harness.rundir import SCOPE_NAME, new_run_id, open_run

if TYPE_CHECKING:
    from harness.bundle import Bundle
    from harness.carry import Carried
    from harness.model import Comparison, Evidence, GateDecision
    from harness.seal import Sealed, SealRequest


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
        "seal": seal_command,
        "verify": verify_command,
        "compare": compare_command,
        "accept": accept_command,
        "report": report_command,
        "history": history_command,
        "nightly": nightly_command,
        "merge": merge_command,
        "export": lambda chosen: exchange_cli.export_command(chosen, print),
        "import": lambda chosen: exchange_cli.import_command(chosen, print),
        "attest": lambda chosen: exchange_cli.attest_command(chosen, print),
        "ingest": lambda chosen: exchange_cli.ingest_command(chosen, print, say),
        "audit": lambda chosen: exchange_cli.audit_command(chosen, print),
        "selftest": selftest_command,
        "lease": lambda chosen: machine_cli.lease_command(chosen, pytest_args, say, print),
        "doctor": lambda chosen: machine_cli.doctor_command(chosen, print),
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
    return shlex.join(["python", "-m", "harness", *own, *after])


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
    run_dir = options.run_dir = options.run_dir or Path("artifacts/runs") / new_run_id()
    requests = [
        ScopeRun(name, root, options.suites, options.pytest_args, options.timeout)
        for name in names
        if name not in not_run
    ]
    line = ProgressLine(sys.stderr.isatty(), tell)
    try:
        with open_run(run_dir) as run, machine_cli.watch([r.scope for r in requests], options, say) as watch:
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
    suites = [] if options.suites == Path("suites") else ["--suites", str(options.suites)]
    say(f"seal it with: {shlex.join(['python', '-m', 'harness', 'seal', str(run_dir), *suites])}")
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


# ---- seal, compare, report ------------------------------------------------------------------------------------------


def _policy(options: argparse.Namespace) -> Policy:
    return Policy(options.strict, options.margin, options.level, options.assume_comparable)


def seal_command(options: argparse.Namespace) -> int:
    """``harness seal``."""
    from harness.seal import seal_run

    return _told(seal_run(options.run_dir, _seal_request(options)))


def merge_command(options: argparse.Namespace) -> int:
    """``harness merge``."""
    return _told(exchange_cli.merge(options.bundles, _seal_request(options)))


def _told(sealed: Sealed) -> int:
    from harness.report import render_text

    print(render_text(sealed.document, color=sys.stdout.isatty(), width=min(get_terminal_size().columns, 120)))
    print(f"sealed  {sealed.place}\ndigest  {sealed.digest}")
    return sealed.decision.code


def _seal_request(options: argparse.Namespace) -> SealRequest:
    from harness.bundle import open_bundle
    from harness.quarantine import read_quarantine
    from harness.seal import SealRequest

    def find_base(head: Evidence) -> Evidence | None:
        from harness.sources import open_evidence

        if options.against == "none":
            return None
        return open_evidence(Path(options.against), head.device_key)

    scopes = known_scopes(options.suites) if options.suites.is_dir() else []
    return SealRequest(
        out=options.out,
        find_base=find_base,
        policy=_policy(options),
        today=datetime.now(UTC).date().isoformat(),
        quarantine=read_quarantine(options.quarantine),
        known_scopes=tuple(scopes),
        carried=tuple(_carried(text) for text in getattr(options, "carry", ())),
        parent=open_bundle(options.parent).evidence.digest if options.parent else "",
    )


def _carried(text: str) -> Carried:
    from harness.bundle import open_bundle
    from harness.carry import Carried

    path, colon, scope = text.rpartition(":")
    if not colon:
        raise UsageError(f"--carry {text!r}: give BUNDLE:SCOPE")
    carried = Carried(open_bundle(Path(path)), scope)
    if not carried.ran:
        raise UsageError(f"scope {scope} was not run in {path} either: {carried.evidence.origin.detail}")
    return carried


def verify_command(options: argparse.Namespace) -> int:
    """``harness verify``."""
    from harness.bundle import find_parent, open_bundle
    from harness.errors import EvidenceError

    if options.bundle.is_file():  # a zip of one: unpacked for the check alone
        from harness.zipped import read_zip

        with tempfile.TemporaryDirectory(prefix="harness-verify-") as folder:
            options.bundle = read_zip(options.bundle, Path(folder))
            return verify_command(options)
    bundle = open_bundle(options.bundle)
    if options.digest and options.digest.lower() != bundle.bag.digest:
        raise EvidenceError(
            f"{options.bundle} is whole, but its digest is {bundle.bag.digest}, not {options.digest}",
            "it is another bundle than the one you were told of",
        )
    print(f"whole   {len(bundle.bag.members)} members, as sealed; every claim follows from them")
    print(f"digest  {bundle.bag.digest}")
    if bundle.about.parent:
        parent = find_parent(options.bundle.resolve(), bundle.about.parent)
        print(f"parent  {bundle.about.parent} ({parent.name if parent else 'not beside it'})")
    for scope in bundle.evidence.scopes:
        passed = sum(case.status.green for case in scope.cases)
        origin = "" if scope.origin.kind is OriginKind.FRESH else f" ({scope.origin.kind}: {scope.origin.detail})"
        print(f"scope   {scope.scope}: {passed} of {len(scope.cases)} cases passed{origin}")
    for note in (*bundle.notes, *_report_notes(bundle)):
        print(f"note    {note}")
    print(f"verdict {bundle.verdict.decision.code} at sealing (this command judges the bundle, not the engine)")
    return ExitCode.OK


def _report_notes(bundle: Bundle) -> list[str]:
    """The report's words are laid out again; other words are no proof of anything, but worth a second look."""
    from harness.report import build_document, render_markdown

    verdict, head = bundle.verdict, replace(bundle.evidence, digest="")
    again = render_markdown(build_document(verdict.comparison, verdict.decision, head, bundle.base))
    if bundle.bag.has("report.md") and bundle.bag.read("report.md") == again.encode():
        return []
    return ["report.md is not what this harness writes from the contents: worded by another version, or edited"]


def compare_command(options: argparse.Namespace) -> int:
    """``harness compare``."""
    from harness.compare import compare
    from harness.gate import decide
    from harness.quarantine import read_quarantine
    from harness.sources import open_evidence

    with output(options.output) as write:
        head = open_evidence(options.head)
        base = open_evidence(options.base, head.device_key)
        policy = _policy(options)
        quarantine = read_quarantine(options.quarantine) if options.quarantine else {}
        comparison = compare(base, head, policy, quarantine, datetime.now(UTC).date().isoformat())
        decision = decide(comparison, policy)
        if options.explain is not None:
            from harness.explain import explain

            write(explain(comparison, options.explain).encode())
        else:
            write(rendered(options.format, comparison, decision, head, base))
    return decision.code


def report_command(options: argparse.Namespace) -> int:
    """``harness report``."""
    from harness.bundle import open_bundle

    with output(options.output) as write:
        bundle = open_bundle(options.bundle)
        verdict = bundle.verdict
        write(rendered(options.format, verdict.comparison, verdict.decision, bundle.evidence, bundle.base))
    return ExitCode.OK


def history_command(options: argparse.Namespace) -> int:
    """``harness history``."""
    width = min(get_terminal_size().columns, 120)
    with output(options.output) as write:
        return history_cli.history_command(options, write, color=sys.stdout.isatty(), width=width)


def nightly_command(options: argparse.Namespace) -> int:
    """``harness nightly``."""
    width = min(get_terminal_size().columns, 120)
    with output(options.output) as write:
        return nightly_cli.nightly_command(options, write, color=sys.stdout.isatty(), width=width)


def rendered(form: str, comparison: Comparison, decision: GateDecision, head: Evidence, base: Evidence | None) -> bytes:
    """A comparison in one of the forms of ``--format``."""
    from harness import report

    if form == "json":
        from harness.codec import encode

        return encode({"comparison": comparison, "decision": decision})
    if form == "junit":
        from harness.junit_out import comparison_junit

        return comparison_junit(comparison)
    document = report.build_document(comparison, decision, head, base)
    if form == "markdown":
        return report.render_markdown(document).encode()
    if form == "html":
        return report.render_html(document, report.draw_plots(document)).encode()
    width = min(get_terminal_size().columns, 120)
    return report.render_text(document, color=sys.stdout.isatty(), width=width).encode()


@contextlib.contextmanager
def output(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Where a result goes. A file is tried before the work is done, and replaced only by a whole result."""
    if path is None:
        yield lambda content: print(content.decode(), end="" if content.endswith(b"\n") else "\n")
        return
    from harness.files import write_atomic, writing

    with writing(path), path.open("ab"):
        pass
    yield lambda content: write_atomic(path, content)


# ---- accept, selftest -----------------------------------------------------------------------------------------------


def accept_command(options: argparse.Namespace) -> int:
    """``harness accept``."""
    from harness.accept import accept
    from harness.bundle import open_bundle

    bundles = [open_bundle(path) for path in options.bundles]
    accepted = accept(
        bundles,
        options.baselines,
        options.reason,
        Policy(),
        scopes=options.scope,
        without_samples=options.without_samples,
    )
    for entry in accepted:
        rows = [
            f"{count} {kind} {change}"
            for kind, table in entry.changes.items()
            for change, count in table.items()
            if count
        ]
        print(f"{entry.path}: {', '.join(rows) or 'nothing moved beyond its tolerance'}")
    return ExitCode.OK


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
