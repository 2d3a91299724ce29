"""Markdown: under the limits, and nothing of an input is read as markup."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.report import markdown_overflow, render_markdown
from harness.report.markdown import SUMMARY_BYTES, code, escaped
from harness.report.words import visible
from tests.report import scenarios
from tests.report.rendered import built
from tests.report.scenarios import HOSTILE, SCENARIOS

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or []]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_summary_is_under_its_limit_and_parses_into_the_sections(name: str) -> None:
    document = built(SCENARIOS[name]())
    text = render_markdown(document)
    assert len(text.encode()) < SUMMARY_BYTES
    tokens = PARSER.parse(text)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert titles[1:6] == ["What changed", "Timing", "Coverage", "Evidence", "Not run, not claimed"]


def test_a_huge_report_overflows_into_a_second_file_that_is_under_a_megabyte_too() -> None:
    document = built(scenarios.huge(20_000))
    summary, whole = render_markdown(document), markdown_overflow(document)
    assert whole is not None
    assert len(summary.encode()) < SUMMARY_BYTES < len(whole.encode()) < 1_000_000
    assert "of 4,000 rows; the rest: report.full.md" in summary
    assert "of 4,000 rows; the rest: comparison.json" in whole


def test_a_short_report_has_no_overflow() -> None:
    assert markdown_overflow(built(scenarios.all_green())) is None


def test_enormous_words_are_cut_rather_than_the_limit_broken() -> None:
    scenario = scenarios.all_green()
    document = built(scenario)
    object.__setattr__(document, "footnotes", ("x " * 200_000,))
    text = render_markdown(document)
    assert len(text.encode()) < SUMMARY_BYTES
    assert "the rest is in report.full.md" in text


def test_nothing_hostile_becomes_markup() -> None:
    text = render_markdown(built(scenarios.hostile()))
    children = inline(PARSER.parse(text))
    assert not [token for token in children if token.type in ("link_open", "image", "em_open", "s_open")]
    html = [token.content for token in children if token.type == "html_inline"]
    assert set(html) <= {"<sup>", "</sup>", "<code>", "</code>"}
    blocks = [token.content for token in PARSER.parse(text) if token.type == "html_block"]
    assert all("<script" not in block for block in blocks)


def test_every_table_row_has_as_many_cells_as_its_head() -> None:
    tokens = PARSER.parse(render_markdown(built(scenarios.hostile())))
    width = 0
    for index, token in enumerate(tokens):
        if token.type == "thead_open":
            width = sum(t.type == "th_open" for t in tokens[index : index + 60 if index else 60])
    assert width
    # markdown-it pads short rows and drops surplus cells, so the raw lines are counted as well
    for line in render_markdown(built(scenarios.regressed())).splitlines():
        if line.startswith("| "):
            assert line.endswith(" |")


MARKUP = ("a|b", "*a*", "_a_", "a_b_c", "__a__", "[a](b)", "![a](b)", "<b>", "`b`", "~~a~~", "\\*a", "&amp;", "$a$")
BLOCKS = (
    "# a",
    "- a",
    "1. a",
    "2) a",
    "+ a",
    "* a",
    "> a",
    "---",
    "===",
    "-",
    "#",
    "    a",
    "1.",
    "```",
    "~~~",
    "+9.1 %",
)
LINKS = ("http://a.b", "https://a.b", "www.a.b", "a@b.c", HOSTILE)


def shown(tokens: list[Token]) -> str:
    """What a reader sees of inline tokens."""
    kinds = ("text", "text_special", "code_inline")
    return "".join(child.content for child in inline(tokens) if child.type in kinds).replace("\u200b", "")


@pytest.mark.parametrize("text", [*MARKUP, *BLOCKS, *LINKS])
@pytest.mark.parametrize("before", ["", "- ", "Words.\n\n"])
def test_escaped_text_reads_as_itself_wherever_a_line_starts(text: str, before: str) -> None:
    tokens = PARSER.parse(f"{before}{escaped(visible(text))}\n")
    assert shown(tokens[-3:] if before != "- " else tokens) == visible(text).strip()
    kinds = {token.type for token in tokens}
    allowed = {"paragraph_open", "inline", "paragraph_close"}
    if before == "- ":
        allowed |= {"bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"}
    assert kinds == allowed


@pytest.mark.parametrize("text", [*MARKUP, *BLOCKS, *LINKS])
def test_escaped_text_reads_as_itself_in_a_table_cell(text: str) -> None:
    tokens = PARSER.parse(f"| a |\n| --- |\n| {escaped(visible(text), starts_line=False)} |\n")
    place = next(i for i, token in enumerate(tokens) if token.type == "td_open")
    assert shown([tokens[place + 1]]) == visible(text).strip()


@pytest.mark.parametrize("text", ["a::b[c]", "a|b", "a`b", "<b>", "a\\|b", "*_~"])
def test_code_reads_as_itself_in_a_table(text: str) -> None:
    tokens = PARSER.parse(f"| a |\n| --- |\n| {code(text)} |\n")
    place = next(i for i, token in enumerate(tokens) if token.type == "td_open")
    assert shown([tokens[place + 1]]) == text
