"""Commands that judge evidence: ``seal merge verify compare report accept``. ``show`` takes each result as one text."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.options import QUARANTINE
from harness.errors import EvidenceError, UsageError
from harness.model import OriginKind
from harness.run import known_scopes
from harness.verdict import ExitCode, Policy

if TYPE_CHECKING:
    from harness.bundles.bundle import Bundle
    from harness.bundles.carry import Carried
    from harness.bundles.seal import Sealed, SealRequest
    from harness.model import Evidence
    from harness.verdict import Comparison, GateDecision

Show = Callable[[str], None]
WIDEST = 120


def screen() -> tuple[bool, int]:
    """Whether standard output takes colours, and how many columns a result may use there."""
    return sys.stdout is not None and sys.stdout.isatty(), min(shutil.get_terminal_size().columns, WIDEST)


def _policy(options: argparse.Namespace) -> Policy:
    return Policy(options.strict, options.margin, options.level, options.assume_comparable)


def seal_command(options: argparse.Namespace, show: Show) -> int:
    """``harness seal``."""
    from harness.bundles.seal import seal_run

    return _told(seal_run(options.run_dir, _seal_request(options)), show)


def merge_command(options: argparse.Namespace, show: Show) -> int:
    """``harness merge``."""
    from harness.bundles.bundle import open_bundle
    from harness.bundles.seal import seal_merged

    if len(options.bundles) < 2:
        raise UsageError("one bundle alone is merged already", "give two or more")
    return _told(seal_merged([open_bundle(path) for path in options.bundles], _seal_request(options)), show)


def _told(sealed: Sealed, show: Show) -> int:
    from harness.report import render_text

    color, width = screen()
    show(render_text(sealed.document, color=color, width=width))
    show(f"sealed  {sealed.place}\ndigest  {sealed.digest}")
    return sealed.decision.code


def _seal_request(options: argparse.Namespace) -> SealRequest:
    from harness.bundles.bundle import open_bundle
    from harness.bundles.seal import SealRequest
    from harness.quarantine import read_quarantine

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
        quarantine=read_quarantine(options.quarantine, named=options.quarantine != QUARANTINE),
        known_scopes=tuple(scopes),
        carried=tuple(_carried(text) for text in getattr(options, "carry", ())),
        parent=open_bundle(options.parent).evidence.digest if options.parent else "",
    )


def _carried(text: str) -> Carried:
    from harness.bundles.bundle import open_bundle
    from harness.bundles.carry import Carried

    path, colon, scope = text.rpartition(":")
    if not colon:
        raise UsageError(f"--carry {text!r}: give BUNDLE:SCOPE")
    carried = Carried(open_bundle(Path(path)), scope)
    if not carried.ran:
        raise UsageError(f"scope {scope} was not run in {path} either: {carried.evidence.origin.detail}")
    return carried


def verify_command(options: argparse.Namespace, show: Show) -> int:
    """``harness verify``."""
    from harness.bundles.bundle import find_parent, open_bundle

    if options.bundle.is_file():  # a zip of one: unpacked for the check alone
        from harness.bundles.zipped import read_zip

        with tempfile.TemporaryDirectory(prefix="harness-verify-") as folder:
            options.bundle = read_zip(options.bundle, Path(folder))
            return verify_command(options, show)
    bundle = open_bundle(options.bundle)
    if options.digest and options.digest.lower() != bundle.bag.digest:
        raise EvidenceError(
            f"{options.bundle} is whole, but its digest is {bundle.bag.digest}, not {options.digest}",
            "it is another bundle than the one you were told of",
        )
    show(f"whole   {len(bundle.bag.members)} members, as sealed; every claim follows from them")
    show(f"digest  {bundle.bag.digest}")
    if bundle.about.parent:
        parent = find_parent(options.bundle.resolve(), bundle.about.parent)
        show(f"parent  {bundle.about.parent} ({parent.name if parent else 'not beside it'})")
    for scope in bundle.evidence.scopes:
        passed = sum(case.status.green for case in scope.cases)
        origin = "" if scope.origin.kind is OriginKind.FRESH else f" ({scope.origin.kind}: {scope.origin.detail})"
        show(f"scope   {scope.scope}: {passed} of {len(scope.cases)} cases passed{origin}")
    for note in (*bundle.notes, *_report_notes(bundle)):
        show(f"note    {note}")
    show(f"verdict {bundle.verdict.decision.code} at sealing (this command judges the bundle, not the engine)")
    return ExitCode.OK


def _report_notes(bundle: Bundle) -> list[str]:
    """The report is laid out again; other words or pictures prove nothing, but are worth a second look."""
    from harness.bundles.bundle import report_of
    from harness.bundles.seal import report_parts
    from harness.report import build_document

    verdict, there = bundle.verdict, report_of(bundle.bag)
    document = build_document(verdict.comparison, verdict.decision, replace(bundle.evidence, digest=""), bundle.base)
    again, not_made = report_parts(document, drawn=not bundle.about.not_written)
    if not_made:
        there = {path: content for path, content in there.items() if path.endswith(".md")}
        again = {path: content for path, content in again.items() if path.endswith(".md")}
    other = sorted(path for path in {*again, *there} if again.get(path) != there.get(path))
    said = "worded or drawn by another version, or edited"
    notes = [f"{path} is not what this harness writes from the contents: {said}" for path in other]
    return notes + [f"report.html was not laid out again: {reason}" for reason in not_made]


def compare_command(options: argparse.Namespace, show: Show) -> int:
    """``harness compare``."""
    from harness.compare import compare
    from harness.gate import decide
    from harness.quarantine import read_quarantine
    from harness.sources import open_evidence

    with output(options.output, show) as write:
        head = open_evidence(options.head)
        base = open_evidence(options.base, head.device_key)
        policy = _policy(options)
        quarantine = read_quarantine(options.quarantine, named=True) if options.quarantine else {}
        comparison = compare(base, head, policy, quarantine, datetime.now(UTC).date().isoformat())
        decision = decide(comparison, policy)
        if options.explain is not None:
            from harness.explain import explain

            write(explain(comparison, options.explain).encode())
        else:
            write(rendered(options.format, comparison, decision, head, base))
    return decision.code


def report_command(options: argparse.Namespace, show: Show, say: Show) -> int:
    """``harness report``."""
    from harness.bundles.bundle import open_bundle

    with output(options.output, show) as write:
        bundle = open_bundle(options.bundle)
        for note in bundle.notes:
            say(f"note: {note}")
        verdict = bundle.verdict
        write(rendered(options.format, verdict.comparison, verdict.decision, bundle.evidence, bundle.base))
    return ExitCode.OK


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
    color, width = screen()
    return report.render_text(document, color=color, width=width).encode()


@contextlib.contextmanager
def output(path: Path | None, show: Show) -> Iterator[Callable[[bytes], None]]:
    """Where a result goes. A file is tried before the work is done, and replaced only by a whole result."""
    if path is None:
        yield lambda content: show(content.decode().removesuffix("\n"))
        return
    from harness.files import outside_bundles, write_atomic, writing

    with writing(path), outside_bundles(path).open("ab"):
        pass
    yield lambda content: write_atomic(path, content)


def accept_command(options: argparse.Namespace, show: Show) -> int:
    """``harness accept``."""
    from harness.accept import accept
    from harness.bundles.bundle import open_bundle

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
        show(f"{entry.path}: {', '.join(rows) or 'nothing moved beyond its tolerance'}")
    return ExitCode.OK
