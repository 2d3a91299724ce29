"""A ``Document`` as GitHub markdown, short enough for a job summary; what is cut stands in an overflow file.

A job summary over 1 MiB is dropped whole, so the size is a promise, not a hope: tables give up rows until it holds.
"""

from __future__ import annotations

import re

from harness.report.document import (
    Block,
    Bullets,
    Cell,
    CellKind,
    Document,
    Facts,
    Figure,
    Paragraph,
    Section,
    Table,
    Tone,
)
from harness.report.words import NBSP

SUMMARY_BYTES = 60_000
OVERFLOW_BYTES = 1_000_000
OVERFLOW_NAME = "report.full.md"

# An underscore within a word is only an underscore; brackets that are escaped make parentheses harmless.
_MARKUP = re.compile(r"[\\`*\[\]<|~$&]|(?<![^\W_])_|_(?![^\W_])")
_BLOCK = re.compile(r"[-+=>#]|\d{1,9}[.)](?=\s|$)")
_LINK = re.compile(r"(?i)(www|https?|ftp)(?=[.:])")
_SIGNS = {Tone.GOOD: "✔ ", Tone.BAD: "✘ ", Tone.DOUBT: "? "}
_ROWS = (500, 200, 100, 50, 20, 10, 5, 3, 1, 0)


def render_markdown(document: Document) -> str:
    """The report for a job summary, under 60 kB of UTF-8. A table that gives up rows says how many, and where."""
    return _within(document, SUMMARY_BYTES, OVERFLOW_NAME)


def markdown_overflow(document: Document) -> str | None:
    """The same report with every listed row, under 1 MB; ``None`` where ``render_markdown`` left nothing out."""
    whole = _laid_out(document, _ROWS[0], OVERFLOW_NAME)
    if len(whole.encode()) < SUMMARY_BYTES:
        return None
    return _within(document, OVERFLOW_BYTES, "comparison.json in the bundle")


def _within(document: Document, limit: int, elsewhere: str) -> str:
    """The layout with the most rows a table that is under ``limit`` bytes."""
    for rows in _ROWS:
        laid_out = _laid_out(document, rows, elsewhere)
        if len(laid_out.encode()) < limit:
            return laid_out
    # Tables are empty and it is still too long: names or reasons are enormous. Cut on a line so that the promise holds.
    notice = f"\n\nCut at {limit:,} bytes; the rest is in {elsewhere}.\n"
    kept = laid_out.encode()[: limit - len(notice.encode()) - 1].decode(errors="ignore")
    return kept[: kept.rfind("\n")] + notice


def _laid_out(document: Document, rows: int, elsewhere: str) -> str:
    verdict = document.verdict
    parts = [
        f"# {_SIGNS.get(verdict.tone, '')}{escaped(verdict.word)}",
        f"**{escaped(verdict.sentence)}** {escaped(document.kind)}, {escaped(verdict.ending)}.",
        "\n".join(f"- {escaped(reason)}" for reason in verdict.reasons[: max(rows, 5)]),
        _more(len(verdict.reasons), max(rows, 5), "reasons", elsewhere),
        " · ".join(f"{count.number} {escaped(count.word)} ({escaped(count.of)})" for count in verdict.counts),
        "\n".join(
            f"- {escaped(fact.name)}: {code(fact.value) if fact.code else escaped(fact.value)}"
            for fact in document.subject
        ),
        *(_section(section, rows, elsewhere) for section in document.sections),
    ]
    if document.footnotes:
        parts += [
            "## Footnotes",
            "\n".join(
                f"{number}. {escaped(note)}" for number, note in enumerate(document.footnotes[: max(rows, 5)], 1)
            ),
        ]
        parts.append(_more(len(document.footnotes), max(rows, 5), "footnotes", elsewhere))
    return "\n\n".join(part for part in parts if part) + "\n"


def _more(total: int, shown: int, things: str, elsewhere: str) -> str:
    return f"{total - shown:,} more {things} are in {elsewhere}." if total > shown else ""


def _section(section: Section, rows: int, elsewhere: str) -> str:
    parts = [
        f"## {escaped(section.title)}",
        escaped(section.lead),
        *(_block(block, rows, elsewhere) for block in section.blocks),
    ]
    return "\n\n".join(part for part in parts if part)


def _block(block: Block, rows: int, elsewhere: str) -> str:
    if isinstance(block, Paragraph):
        return escaped(block.text)
    if isinstance(block, Bullets):
        listing = "\n".join(f"- {escaped(item)}" for item in block.items[: max(rows, 5)])
        title = f"**{escaped(block.title)}**\n\n" if block.title else ""
        more = _more(len(block.items), max(rows, 5), "entries", elsewhere)
        return f"{title}{listing}" + (f"\n\n{more}" if more else "")
    if isinstance(block, Facts):
        listing = "\n".join(
            f"- {escaped(fact.name)}: {code(fact.value) if fact.code else escaped(fact.value)}" for fact in block.items
        )
        return f"**{escaped(block.title)}**\n\n{listing}"
    if isinstance(block, Figure):
        # A job summary shows no files of the bundle, so a figure is its sentence and its table.
        table = _table(block.twin, rows, elsewhere)
        return _folded(f"{block.title}. {block.alt}", table)
    table = _table(block, rows, elsewhere)
    return (
        _folded(f"{block.caption} ({block.total:,})", table)
        if block.folded
        else f"**{escaped(block.caption)}**\n\n{table}"
    )


def _folded(summary: str, body: str) -> str:
    # Inside <summary> GitHub reads HTML, not markdown.
    return f"<details><summary>{_entities(summary)}</summary>\n\n{body}\n\n</details>"


def _table(table: Table, limit: int, elsewhere: str) -> str:
    rows = table.rows[:limit]
    if not rows:
        return f"{table.total:,} rows, in {elsewhere}."
    lines = ["| " + " | ".join(escaped(column) for column in table.columns) + " |"]
    lines.append("|" + "|".join(" --: " if row_is_number else " --- " for row_is_number in _numeric(table)) + "|")
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    if table.total > len(rows):
        # Rows that the document itself does not hold are not in the overflow file either.
        where = elsewhere if len(rows) < len(table.rows) else table.rest
        lines += ["", f"{len(rows):,} of {table.total:,} rows; the rest: {escaped(where)}."]
    return "\n".join(lines)


def _numeric(table: Table) -> list[bool]:
    return [table.rows[0][index].kind is CellKind.NUMBER for index in range(len(table.columns))]


def _cell(cell: Cell) -> str:
    marks = "".join(f"<sup>{note}</sup>" for note in cell.notes)
    if cell.kind is CellKind.OUTCOME:
        weight = "**" if cell.tone is Tone.BAD else ""
        return f"{_SIGNS.get(cell.tone, '')}{weight}{escaped(cell.text, starts_line=False)}{weight}{marks}"
    if cell.kind in (CellKind.NODE, CellKind.CODE):
        return f"{code(cell.text)}{marks}"
    return f"{escaped(cell.text, starts_line=False)}{marks}"


def escaped(text: str, *, starts_line: bool = True) -> str:
    """``text`` as itself: no emphasis, links, HTML, tables, formulas, autolinks or mentions come of it.

    At the start of a line it is kept from becoming a list, a heading or a quotation too; a table cell starts none.
    """
    quoted = _MARKUP.sub(r"\\\g<0>", text.replace(NBSP, " ").strip())
    quoted = _LINK.sub(lambda match: f"{match[0][:-1]}&#{ord(match[0][-1])};", quoted)
    quoted = quoted.replace("@", "@\u200b")
    block = _BLOCK.match(quoted) if starts_line else None
    return f"{quoted[: block.end() - 1]}\\{quoted[block.end() - 1 :]}" if block else quoted


def code(text: str) -> str:
    """``text`` in a code span that also survives in a table cell."""
    if not text:
        return ""
    if "`" in text or "|" in text:
        return f"<code>{_entities(text)}</code>"
    return f"`{text}`"


def _entities(text: str) -> str:
    """All but letters, digits and a few harmless signs as numeric entities, so neither HTML nor markdown reads them."""
    return re.sub(r"[^\w\s.,:;/=%-]|_", lambda match: f"&#{ord(match[0])};", text)
