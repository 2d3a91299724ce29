"""Documents, pictures and pages by name, each made once: drawing takes seconds, and nobody changes what was drawn."""

from __future__ import annotations

from functools import cache

from harness.report import Document, build_document, build_history_document, draw_plots, render_html
from harness.trends.history import build_history
from tests.report.nights import nights
from tests.report.scenarios import SCENARIOS, Scenario


def built(scenario: Scenario) -> Document:
    """What the report says of a scenario."""
    return build_document(scenario.comparison, scenario.decision, scenario.head, scenario.base)


@cache
def documented(name: str) -> Document:
    """The document of a scenario, or of thirty nights."""
    return build_history_document(build_history(nights())) if name == "history" else built(SCENARIOS[name]())


@cache
def drawn(name: str) -> dict[str, bytes]:
    """Its pictures."""
    return draw_plots(documented(name))


@cache
def page(name: str) -> str:
    """Its page."""
    return render_html(documented(name), drawn(name))
