"""Draws the picture of a report that the README shows: ``python -m tests.report.picture``.

Its figures are made up (the fixtures of these tests), so that it shows every kind of row on one page.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

from tests.report.browser import Browser, found
from tests.report.rendered import page

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1180, 1060


def main() -> None:
    executable = found()
    if executable is None:
        raise SystemExit("no chromium on this machine")
    with tempfile.TemporaryDirectory() as folder, Browser(executable) as browser:
        path = Path(folder) / "report.html"
        path.write_text(page("regressed"), encoding="utf-8")
        tab = browser.open(path, width=WIDTH, height=HEIGHT)
        tab.evaluate("document.documentElement.style.scrollbarWidth = 'none'")
        PICTURE.write_bytes(base64.b64decode(tab.screenshot()))
    print(PICTURE)


if __name__ == "__main__":
    main()
