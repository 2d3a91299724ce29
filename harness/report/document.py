"""What a report says, before it has a form: frozen blocks of words and figures.

``view`` writes a ``Document``; ``text``, ``markdown``, ``html`` and ``plots`` only lay it out. Strings here are plain
text: control and bidirectional-override characters have been made visible already, and each renderer escapes for its
own format.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """How a thing is meant. Never the only carrier of a meaning: the words say it too."""

    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    QUIET = "quiet"
    PLAIN = "plain"


class CellKind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    NODE = "node"  # a pytest node id: path::name
    CODE = "code"
    OUTCOME = "outcome"  # one of the words of harness.model, in capitals


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. ``notes`` are footnote numbers; ``sort`` orders the column where the text would not."""

    text: str
    kind: CellKind = CellKind.TEXT
    tone: Tone = Tone.PLAIN
    notes: tuple[int, ...] = ()
    sort: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a caption. ``total`` counts the rows there are, ``rows`` holds those that are listed.

    ``row_header`` is the column that names the row. ``rest`` says where the unlisted rows are. A ``folded`` table is
    shown closed where the form can do that.
    """

    key: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: int
    row_header: int = 0
    rest: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.key}: every row needs {len(self.columns)} cells")
        if self.total < len(self.rows):
            raise ValueError(f"table {self.key}: lists {len(self.rows)} rows of {self.total}")
        if self.total > len(self.rows) and not self.rest:
            raise ValueError(
                f"table {self.key}: {self.total - len(self.rows)} rows are left out without saying where they are"
            )


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    tone: Tone = Tone.PLAIN
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]
    title: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    title: str
    items: tuple[Fact, ...]
    folded: bool = False


# ---- plots: the data of a picture, and the same data as a table -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """One side of a round plot: ``repeats[i]`` holds the times of repeat ``i``'s rounds, ``medians[i]`` its figure."""

    side: str
    repeats: tuple[tuple[float, ...], ...]
    medians: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RoundStrips:
    unit: str
    quantity: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True)
class ForestRow:
    label: str
    ratio: float
    low: float | None
    high: float | None
    margin: float | None
    outcome: str
    tone: Tone
    n: str


@dataclass(frozen=True, slots=True)
class Forest:
    rows: tuple[ForestRow, ...]
    interval: str


@dataclass(frozen=True, slots=True)
class HistogramSide:
    side: str
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    quantity: str
    counted: str
    sides: tuple[HistogramSide, ...]


@dataclass(frozen=True, slots=True)
class ResourceBar:
    label: str
    head: float
    base: float | None


@dataclass(frozen=True, slots=True)
class ResourcePanel:
    quantity: str
    bars: tuple[ResourceBar, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    panels: tuple[ResourcePanel, ...]


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One bundle's figure with the span of its repeats; ``counts`` is false where it is shown and not judged."""

    label: str
    value: float
    low: float
    high: float
    counts: bool


@dataclass(frozen=True, slots=True)
class TrendStep:
    at: int
    label: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Trend:
    """Points in order of time; ``levels`` are (first point, one past the last, median), ``breaks`` are first points."""

    quantity: str
    unit: str
    points: tuple[TrendPoint, ...]
    levels: tuple[tuple[int, int, float], ...]
    steps: tuple[TrendStep, ...]
    breaks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    source: str
    points: tuple[tuple[float, float], ...]  # (seconds, value)


@dataclass(frozen=True, slots=True)
class TelemetryPanel:
    quantity: str
    unit: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What the machine did while a scope ran; all panels share the time axis."""

    panels: tuple[TelemetryPanel, ...]


@dataclass(frozen=True, slots=True)
class AlarmRate:
    """How often one rule raised an alarm at one planted delay: shares, per cent, with the exact interval."""

    rule: str
    delay: int
    share: float
    low: float
    high: float
    trials: int


@dataclass(frozen=True, slots=True)
class AlarmTrial:
    """What one trial measured, per cent: by paired rounds, and by the means of runs one side after the other."""

    delay: int
    paired: float
    in_a_row: float


@dataclass(frozen=True, slots=True)
class Alarms:
    """A power study. ``targets`` are (delay, per cent) of the first rule."""

    rates: tuple[AlarmRate, ...]
    targets: tuple[tuple[int, float], ...]
    trials: tuple[AlarmTrial, ...]


PlotData = RoundStrips | Forest | Histogram | Resources | Trend | Telemetry | Alarms


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its data: ``title`` names it, ``alt`` says what it shows, ``twin`` holds the figures as text."""

    key: str
    title: str
    alt: str
    data: PlotData
    twin: Table


Block = Paragraph | Bullets | Facts | Table | Figure


# ---- the whole ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the one-screen form: a short word, what it is about, and the detail that may go on a second line."""

    label: str
    text: str
    tone: Tone = Tone.PLAIN
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """``brief`` is what the one-screen form shows of it, most important first; ``hint`` tells how to read that."""

    key: str
    title: str
    lead: str
    blocks: tuple[Block, ...]
    brief: tuple[Line, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """A number with its word, for the strip under the verdict; ``at`` is the key of the place that tells more."""

    number: str
    word: str
    of: str
    tone: Tone = Tone.PLAIN
    at: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ending`` says in a few words what came of it: the exit code, or what was looked at."""

    word: str
    sentence: str
    tone: Tone
    ending: str
    reasons: tuple[str, ...]
    counts: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """``kind`` is what this is, ``stamp`` ends the first line of the one-screen form, ``foot`` are the last words."""

    kind: str
    title: str
    stamp: tuple[str, ...]
    verdict: Verdict
    subject: tuple[Fact, ...]
    sections: tuple[Section, ...]
    footnotes: tuple[str, ...]
    foot: str

    def __post_init__(self) -> None:
        keys = [*_RESERVED, *(key for section in self.sections for key in _keys(section))]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"every section, table and figure is found by its key; these stand twice: {twice}")
        nowhere = sorted({count.at for count in self.verdict.counts if count.at} - set(keys))
        if nowhere:
            raise ValueError(f"a count under the verdict leads to {nowhere}, and there is no such place")

    def section(self, key: str) -> Section:
        """The section called ``key``; ``KeyError`` when there is none."""
        for section in self.sections:
            if section.key == key:
                return section
        raise KeyError(key)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in reading order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Figure))


# What a page itself is made of.
_RESERVED = ("main", "footnotes")


def _keys(section: Section) -> list[str]:
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    tables = [block for block in section.blocks if isinstance(block, Table)] + [figure.twin for figure in figures]
    return [section.key, *(table.key for table in tables), *(figure.key for figure in figures)]
