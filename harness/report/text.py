"""The verdict on one terminal screen: a ``Document`` in at most 40 lines of 100 columns, plain or with ANSI codes."""

from __future__ import annotations

import textwrap
from io import StringIO

from rich.console import Console
from rich.text import Text

from harness.report.document import Document, Line, Section, Tone
from harness.report.words import NBSP, shortened

_STYLES = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.DOUBT: "yellow", Tone.QUIET: "dim", Tone.PLAIN: ""}
_REASONS = 3
_SENTENCE_LINES = 2
_LABEL = 16
# Reasons and rows both stand worst first, so the first ones are about the same things.
_LOOKED_AT = 20
# Lines a section may always use, most important section first; what is left over goes out in the same order.
_SHARES = {"changed": 6, "limits": 4, "coverage": 6, "timing": 4}
_FOOT = "evidence"


def render(document: Document, *, color: bool, width: int, height: int) -> str:
    """Lines joined by newlines; never fewer than 24 lines of 60 columns, below which no verdict has room."""
    width, height = max(width, 60), max(height, 24)
    top = _top(document, width)
    foot = [line for section in document.sections if section.key == _FOOT for line in _foot(section, width)]
    sections = [section for section in document.sections if section.brief and section.key != _FOOT]
    entries = {section.key: _entries(section, width) for section in sections}
    room = height - len(top) - len(foot) - 2 * len(sections)
    shares = _divided(room, {key: sum(map(len, lines)) for key, lines in entries.items()})
    lines = list(top)
    for section in sections:
        lines += [Text(""), _heading(section), *_fitted(entries[section.key], shares[section.key])]
    return _printed([*lines, *foot], color=color, width=width)


def _top(document: Document, width: int) -> list[Text]:
    verdict = document.verdict
    head = Text(verdict.word.upper(), style=_STYLES[verdict.tone])
    tail = "  ".join((verdict.ending, *document.stamp))
    head.append(" " * max(2, width - head.cell_len - len(tail)) + tail, style="not bold dim")
    return [_cut(head, width), *_wrapped(verdict.sentence, width, _SENTENCE_LINES), *_reasons(document, width)]


def _reasons(document: Document, width: int) -> list[Text]:
    """The gate's reasons, but for those that the sentence or a row under What changed tells anyway."""
    told = [line.text for line in document.section("changed").brief[:_LOOKED_AT] if line.label]
    untold = [
        reason
        for reason in document.verdict.reasons[:_LOOKED_AT]
        if reason not in document.verdict.sentence and not any(about in reason for about in told)
    ]
    lines = [_cut(Text(f"  because {reason}"), width) for reason in untold[:_REASONS]]
    if len(untold) > _REASONS:
        lines[-1:] = [Text(f"  and {len(document.verdict.reasons) - _REASONS + 1:,} more reasons", style="dim")]
    lines[:1] = _wrapped(f"  because {untold[0]}", width, _SENTENCE_LINES) if untold else []  # it says what to do
    return lines


def _heading(section: Section) -> Text:
    return Text(section.title, style="bold") + Text(f"  {section.hint}" if section.hint else "", style="dim")


def _entries(section: Section, width: int) -> list[list[Text]]:
    label_width = min(_LABEL, max(len(line.label) for line in section.brief))
    return [_entry(line, width, label_width) for line in section.brief]


def _entry(line: Line, width: int, label_width: int) -> list[Text]:
    """Label, text and detail on one line where they fit, else the detail (or the rest of the text) on a second one."""
    label = Text(
        f"  {shortened(line.label, label_width):<{label_width}}  " if line.label else "  ", style=_STYLES[line.tone]
    )
    margin = Text(" " * label.cell_len)
    whole = label + Text(line.text) + Text(f"  {line.detail}" if line.detail else "")
    if whole.cell_len <= width:
        return [whole]
    room = width - label.cell_len
    if line.detail:
        details = _wrapped(line.detail, room, 2)
        return [label + _cut_front(line.text, room), *(margin + detail for detail in details)]
    first, *rest = _wrapped(line.text, room, 2)
    return [label + first, *(margin + text for text in rest)]


def _wrapped(text: str, width: int, lines: int) -> list[Text]:
    """``text`` folded between words into at most ``lines`` lines, the last one cut where that is not enough."""
    return [_cut(Text(line), width) for line in textwrap.wrap(text, width, max_lines=lines, placeholder="…")]


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


def _cut_front(text: str, width: int) -> Text:
    """The end of a node id tells it from others, so the cut goes to the front."""
    shown = Text(text)
    while shown.cell_len > width:
        text = text[max(1, shown.cell_len - width) + 1 :]
        shown = Text("…" + text)
    return shown


def _divided(room: int, wanted: dict[str, int]) -> dict[str, int]:
    """Lines for each section: its share first, then what is left over, in the order of importance."""
    shares = {key: min(lines, _SHARES.get(key, 4)) for key, lines in wanted.items()}
    while sum(shares.values()) > room:
        largest = max(shares, key=lambda key: shares[key])
        shares[largest] -= 1
    for key in sorted(shares, key=lambda key: list(_SHARES).index(key) if key in _SHARES else len(_SHARES)):
        shares[key] += min(room - sum(shares.values()), wanted[key] - shares[key])
    return shares


def _fitted(entries: list[list[Text]], room: int) -> list[Text]:
    """As many whole entries as fit in ``room`` lines, the last line saying how many did not."""
    if sum(map(len, entries)) <= room:
        return [line for entry in entries for line in entry]
    lines: list[Text] = []
    shown = 0
    for entry in entries:
        if len(lines) + len(entry) > room - 1:
            break
        lines += entry
        shown += 1
    return [*lines, Text(f"  and {len(entries) - shown:,} more, in the report", style="dim")]


def _foot(section: Section, width: int) -> list[Text]:
    """The section on one line, so that a screenshot still says what it is of."""
    return [
        _cut(Text(section.title, style="bold") + Text(f"  {line.text}", style="not bold"), width)
        for line in section.brief
    ]


def _printed(lines: list[Text], *, color: bool, width: int) -> str:
    out = StringIO()
    console = _console(out, color=color, width=width)
    for line in lines:
        line.plain = line.plain.replace(NBSP, " ")
        console.print(line, no_wrap=True, overflow="crop", soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _console(out: StringIO, *, color: bool, width: int) -> Console:
    return Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
