"""Reports: one ``Document`` of words and figures, laid out as text, markdown, HTML and SVG. Opens no files.

Each layout imports its own library only when asked for, so a machine without matplotlib or jinja2 still gets its
verdict on the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.report.document import Document
from harness.report.markdown import markdown_overflow, render_markdown
from harness.report.view import build_document

if TYPE_CHECKING:
    from harness.trends.history import History

__all__ = [
    "Document",
    "build_document",
    "build_history_document",
    "draw_plots",
    "markdown_overflow",
    "render_html",
    "render_markdown",
    "render_text",
]


def render_text(document: Document, *, color: bool = False, width: int = 100, height: int = 40) -> str:
    """The verdict on one terminal screen of ``height`` lines and ``width`` columns, with ANSI codes if ``color``."""
    from harness.report.text import render

    return render(document, color=color, width=width, height=height)


def render_html(document: Document, plots: Mapping[str, bytes]) -> str:
    """One self-contained page. ``plots`` are those of ``draw_plots``; a figure without one shows its table alone."""
    from harness.report.html import render

    return render(document, plots)


def draw_plots(document: Document) -> dict[str, bytes]:
    """File name -> SVG of every figure of ``document``, the same bytes for the same document."""
    from harness.report.plots import draw

    return draw(document)


def build_history_document(history: History) -> Document:
    """Everything a history says, in the form of a report: steps, latest, every series, bundles, limits."""
    from harness.report.history import build_history_document as build

    return build(history)
