"""docs/routing.md holds the policy as it is."""

from __future__ import annotations

from pathlib import Path

from engine.routing.wording import policy_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "routing.md"
HEADING = "## The policy\n"


def test_the_page_holds_the_printed_table() -> None:
    """To mend a difference: replace everything from the first table on by ``python -m engine routes --table``."""
    generated = PAGE.read_text().split(HEADING, 1)[1].split("\n\n", 1)[1]
    assert generated == "\n".join(policy_markdown()) + "\n"
