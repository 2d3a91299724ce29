"""``harness history``: bundles from folders in, one history out as text, markdown, HTML, JSON or CSV."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.commands.options import add_margin, add_output
from harness.errors import HarnessError, UsageError
from harness.model import Evidence
from harness.trends.history import MARGIN_FLOOR, History, build_history
from harness.typed import typed
from harness.verdict import ExitCode

FORMS = ("text", "markdown", "html", "json", "csv", "wide")


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``history`` to the command line."""
    history = add_parser(
        "history",
        help="trend of every metric over many bundles",
        description="Lay many sealed bundles side by side in the order of their time and say where a level changed.",
        epilog="""\
examples:
  harness history artifacts/bundles                                   what stepped, on the terminal
  harness history artifacts/bundles --format html -o history.html    a page with plots
  harness history nightly/* --only round_ms --format csv -o trend.csv     one line per point
  harness history nightly/* --only round_ms --format wide -o trend.csv    one line per series, one column per bundle
a bundle that does not verify is named, left out, and makes the exit code 3
""",
    )
    history.add_argument("bundles", type=Path, nargs="+", metavar="DIR", help="a sealed bundle, or a folder of them")
    history.add_argument("--only", metavar="TEXT", default="", help="only series whose case or metric holds this text")
    history.add_argument("--device-key", metavar="KEY", default="", help="only bundles of this device")
    add_margin(history, MARGIN_FLOOR)
    add_output(history, FORMS)


def history_command(options: argparse.Namespace, write: Callable[[bytes], None], *, color: bool, width: int) -> int:
    """``harness history``: the result goes to ``write``; the code is 3 where a bundle could not be read."""
    evidence, not_read = read_bundles(find_bundles(options.bundles))
    kept = [bundle for bundle in evidence if options.device_key in ("", bundle.device_key)]
    if evidence and not kept:
        known = ", ".join(sorted({bundle.device_key for bundle in evidence}))
        raise UsageError(f"no bundle of device {options.device_key}", f"there are bundles of {known}")
    history = only(build_history(kept, options.margin, not_read), options.only)
    write(rendered(options.format, history, color=color, width=width))
    return ExitCode.EVIDENCE_BROKEN if not_read else ExitCode.OK


def find_bundles(paths: Iterable[Path]) -> list[Path]:
    """The bundles named, and those directly in the folders named. ``UsageError`` where there is none."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"there is no folder {path}", "give sealed bundles, or folders that hold some")
        inside = [] if (path / "bagit.txt").exists() else sorted(path.glob("*/bagit.txt"))
        bundles = [path] if (path / "bagit.txt").exists() else [bag.parent for bag in inside]
        found += [bundle for bundle in bundles if not bundle.name.endswith(".unfinished")]
    if not found:
        raise UsageError(f"no sealed bundle in {', '.join(map(str, paths))}", f"{typed('seal', 'RUN_DIR')} makes them")
    return found


def read_bundles(paths: Iterable[Path]) -> tuple[list[Evidence], tuple[str, ...]]:
    """Every bundle that verifies, and a sentence for each that does not."""
    from harness.bundles.bundle import open_bundle

    evidence, not_read = [], []
    for path in paths:
        try:
            evidence.append(open_bundle(path).evidence)
        except HarnessError as error:
            not_read.append(f"{path}: {error}")
    return evidence, tuple(not_read)


def only(history: History, text: str) -> History:
    """The history of the series that hold ``text``."""
    series = tuple(series for series in history.series if text in f"{series.node} {series.name}")
    if text and not series:
        raise UsageError(f"no series holds {text!r}", f"there are {len(history.series)}; leave --only out to see them")
    return History(history.bundles, series, history.margin, history.not_read)


def rendered(form: str, history: History, *, color: bool, width: int) -> bytes:
    """The history in one of ``FORMS``."""
    if form in ("csv", "wide"):
        from harness.trends import history_table

        return (history_table.to_csv(history) if form == "csv" else history_table.to_wide_csv(history)).encode()
    if form == "json":
        from harness.codec import encode

        return encode(history)
    from harness import report

    document = report.build_history_document(history)
    if form == "markdown":
        return report.render_markdown(document).encode()
    if form == "html":
        return report.render_html(document, report.draw_plots(document)).encode()
    return report.render_text(document, color=color, width=width).encode()
