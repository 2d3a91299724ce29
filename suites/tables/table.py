"""A table as a record, and as markdown. What is published of another model stands in rows of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PUBLISHED = "published, 27B on V100s"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under ``columns``; the first column says what a row is about. ``notes`` say how it came about."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.columns)} columns: {row}")

    def markdown(self) -> Iterator[str]:
        """Line by line, the notes first."""
        yield f"## {self.title}"
        yield ""
        yield from self.notes
        yield ""
        yield f"| {' | '.join(self.columns)} |"
        yield f"|---|{'--:|' * (len(self.columns) - 1)}"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"
        yield ""


def spread(values: list[float]) -> str:
    """One figure, or the smallest and the largest of several."""
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
