"""``harness nightly``: bundles of many nights in, a summary out, and the text of an issue where two nights agree."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.history import find_bundles
from harness.commands.options import add_output
from harness.errors import EvidenceError, HarnessError, UsageError
from harness.files import write_atomic
from harness.trends.nights import confirmed, judge_nights
from harness.verdict import ExitCode

if TYPE_CHECKING:
    from harness.bundles.bundle import Bundle

FORMS = ("text", "markdown", "html")
LAST = 14


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``nightly`` to the command line."""
    nightly = add_parser(
        "nightly",
        help="what the last nights agree in",
        description="Say what the latest nights agree in, so that one bad night is no alarm; write an issue about it.",
        epilog="""\
examples:
  harness nightly artifacts/bundles                          a summary of the latest night
  harness nightly artifacts/bundles --issue issue.md         also an issue's text, if two nights in a row agree
the first line of the issue is its title; without something confirmed no file is written
exit codes: 0 nothing confirmed, 1 confirmed, 3 a bundle does not verify
""",
    )
    nightly.add_argument("bundles", type=Path, nargs="+", metavar="DIR", help="a sealed bundle, or a folder of them")
    nightly.add_argument("--issue", type=Path, metavar="FILE", help="write the issue's text there")
    nightly.add_argument("--device-key", metavar="KEY", default="", help="default: that of the latest bundle")
    nightly.add_argument(
        "--last", type=int, default=LAST, metavar="N", help="how many nights to look at (default: %(default)s)"
    )
    add_output(nightly, FORMS)


def nightly_command(options: argparse.Namespace, write: Callable[[bytes], None], *, color: bool, width: int) -> int:
    """Write the summary; with ``--issue``, also the issue's text where something is confirmed. 1 then, else 0."""
    from harness import report
    from harness.report.nights import build_nights_document, issue_title

    if options.last < 1:
        raise UsageError(f"--last {options.last}: at least one night is needed")
    if options.issue is not None and options.issue.exists():
        raise UsageError(f"{options.issue} is there already", "remove it: an old issue must not be taken for a new one")
    bundles, not_read = read_nights(find_bundles(options.bundles), options.device_key, options.last)
    nights = judge_nights((b.evidence, b.verdict.comparison, b.verdict.decision) for b in bundles)
    places = {bundle.evidence.digest: str(bundle.bag.folder) for bundle in bundles}
    document = build_nights_document(nights, places, not_read)
    if options.format == "markdown":
        write(report.render_markdown(document).encode())
    elif options.format == "html":
        write(report.render_html(document, {}).encode())
    else:
        write(report.render_text(document, color=color, width=width).encode())
    found = confirmed(nights)
    if found and options.issue is not None:
        write_atomic(options.issue, f"{issue_title(nights)}\n\n{report.render_markdown(document)}".encode())
    if found:
        return ExitCode.REGRESSION
    return ExitCode.EVIDENCE_BROKEN if not_read else ExitCode.OK


def read_nights(paths: Sequence[Path], device_key: str, last: int) -> tuple[list[Bundle], list[str]]:
    """The last bundles of one device (that of the latest one, unless given), and what could not be read."""
    from harness.bundles.bundle import open_bundle

    bundles: list[Bundle] = []
    not_read = []
    for path in paths:
        try:
            bundles.append(open_bundle(path))
        except HarnessError as error:
            not_read.append(f"{path}: {error}")
    if not bundles:
        raise EvidenceError(f"none of {len(paths)} bundles can be read: {not_read[0]}")
    bundles.sort(key=lambda bundle: (bundle.evidence.created, bundle.about.name))
    device = device_key or bundles[-1].evidence.device_key
    of_device = [bundle for bundle in bundles if bundle.evidence.device_key == device]
    if not of_device:
        known = ", ".join(sorted({bundle.evidence.device_key for bundle in bundles}))
        raise UsageError(f"no bundle of device {device}", f"there are bundles of {known}")
    return of_device[-last:], not_read
