"""A ``Document`` as one self-contained page: no network, no file beside it, readable with scripts off.

Jinja escapes every string. On top of that the page forbids itself everything but its own style and its own script,
whose hash it names, so that not even a mistake here would run what an input brought along.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from harness.report.document import Document, Figure, Table
from harness.report.palette import INKS, PAPER

# From this many rows on a table is easier to use with a filter than without.
FILTERED_FROM = 8

_ROLES = {ink: role for role, ink in INKS.items()}
_INK = re.compile("|".join(INKS.values()), re.IGNORECASE)
_STYLE = re.compile(r'style="[^"]*"')
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r"[#]([\w-]+)")
_NOT_FOR_A_PAGE = re.compile(r"<metadata>.*?</metadata>|<style\b.*?</style>|<title>.*?</title>", re.DOTALL)
_SIZE = re.compile(r'<svg\b[^>]*?viewBox="([^"]*)"[^>]*>')


def render(document: Document, plots: Mapping[str, bytes]) -> str:
    """The page as text, to be written as UTF-8. A figure with no entry ``<key>.svg`` in ``plots`` shows its table."""
    return _template().render(
        document=document,
        pictures={
            figure.key: picture(figure, plots[f"{figure.key}.svg"])
            for figure in document.figures
            if f"{figure.key}.svg" in plots
        },
        kind=lambda block: type(block).__name__,
        filtered=lambda table: len(table.rows) >= FILTERED_FROM,
        split_node=lambda text: text.rpartition("::"),
        unlisted=_unlisted,
        **page_assets(),
    )


def page_assets() -> dict[str, Markup | str]:
    """Style and script of a page and the hash under which its policy allows that script."""
    script = asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(asset("report.css")), "script": Markup(script), "script_hash": digest}


def picture(figure: Figure, svg: bytes) -> Markup:
    """The SVG as a part of the page: its inks are the page's, its ids do not clash, its name is the figure's sentence.

    ``svg`` is matplotlib's: well-formed, every text in it escaped, which is what lets it in without another escape.
    """
    text = svg.decode()
    text = _NOT_FOR_A_PAGE.sub("", text[text.index("<svg") :]).replace(f"fill: {PAPER}", "fill: none")
    text = _STYLE.sub(lambda style: _INK.sub(lambda ink: f"var(--{_ROLES[ink[0].lower()]})", style[0]), text)
    referenced = set(_REFERENCE.findall(text))
    text = _ID.sub(lambda found: found[0] if found[1] in referenced else "", text)
    start = _SIZE.search(text)
    if start is None:
        raise ValueError(f"figure {figure.key}: an SVG without a viewBox cannot be scaled to the page")
    opening = Markup('<svg role="img" aria-label="{}. {}" viewBox="{}">').format(figure.title, figure.alt, start[1])
    return opening + Markup(text[start.end() :])


def _unlisted(table: Table) -> str:
    left_out = table.total - len(table.rows)
    return f"{len(table.rows):,} of {table.total:,} rows are listed; {table.rest}." if left_out else ""


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(asset("report.html.j2"))


@cache
def asset(name: str) -> str:
    """A text file that belongs to this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
