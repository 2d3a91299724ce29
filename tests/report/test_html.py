"""The page, read as text: self-contained, accessible by structure, and with nothing of an input in its markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from harness.report import draw_plots, render_html
from harness.report.document import Count
from harness.report.html import asset
from tests.report import scenarios
from tests.report.rendered import built, documented, page

VOID = {"meta", "wbr", "input", "br", "link", "img"}


class Outline(HTMLParser):
    """Every element with its attributes and its chain of parents; fails on a tag that closes nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.parents: list[tuple[str, ...]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.parents.append(tuple(self._open))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.parents.append(tuple(self._open))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@cache
def outline(name: str) -> Outline:
    return Outline(page(name))


NAMES = ["regressed", "no_baseline", "hostile", "history"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_one_well_formed_file_that_asks_nothing_of_the_network(name: str) -> None:
    found = outline(name)
    assert page(name).lstrip().startswith("<!doctype html>")
    for _, attributes in found.elements:
        assert "src" not in attributes
        assert all(value.startswith("#") for key, value in attributes.items() if key in ("href", "xlink:href"))
    assert not found.all("link")
    style = next(text for tag, text in found.texts if tag == "style")
    assert "@import" not in style
    assert "url(" not in style


@pytest.mark.parametrize("name", NAMES)
def test_the_only_script_is_ours_and_the_policy_names_its_hash(name: str) -> None:
    found = outline(name)
    scripts = [text for tag, text in found.texts if tag == "script"]
    assert scripts == [asset("report.js")]
    policy = next(meta["content"] for meta in found.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not [key for _, attributes in found.elements for key in attributes if key.startswith("on")]


def test_the_hostile_strings_are_shown_and_not_obeyed() -> None:
    text = "".join(data for _, data in outline("hostile").texts)
    assert "<script>alert(1)</script>" in text
    assert "{{7*7}}" in text
    assert "\x1b" not in page("hostile")
    assert "\u202e" not in page("hostile")


@pytest.mark.parametrize("name", NAMES)
def test_landmarks_language_title_and_skip_link(name: str) -> None:
    found = outline(name)
    assert found.all("html")[0]["lang"] == "en"
    assert len(found.all("main")) == len(found.all("h1")) == len(found.all("title")) == 1
    assert found.all("nav")[0]["aria-label"]
    assert [tag for tag, _ in found.elements if tag in ("header", "footer")] == ["header", "footer"]
    first = found.all("a")[0]
    assert first == {"class": "skip", "href": "#main"}


@pytest.mark.parametrize("name", NAMES)
def test_headings_go_down_one_step_at_a_time(name: str) -> None:
    levels = [int(tag[1]) for tag, _ in outline(name).elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_a_caption_and_every_header_a_scope(name: str) -> None:
    found = outline(name)
    assert len(found.all("caption")) == len(found.all("table")) > 3
    assert all(head.get("scope") in ("col", "row") for head in found.all("th"))
    rows = [
        chain for chain, (tag, _) in zip(found.parents, found.elements, strict=True) if tag == "tr" and "tbody" in chain
    ]
    assert len(rows) == sum(head["scope"] == "row" for head in found.all("th"))


@pytest.mark.parametrize("name", NAMES)
def test_pictures_have_names_ids_are_unique_and_references_resolve(name: str) -> None:
    found = outline(name)
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in found.all("svg"))
    assert all("alt" in image for image in found.all("img"))
    ids = Counter(attributes["id"] for _, attributes in found.elements if "id" in attributes)
    assert [key for key, times in ids.items() if times > 1] == []
    for _, attributes in found.elements:
        for key in ("href", "xlink:href"):
            if key in attributes:
                assert attributes[key].removeprefix("#") in ids
        assert all(reference in ids for reference in attributes.get("aria-labelledby", "").split())
        assert all(reference in ids for reference in re.findall(r"url\(#([^)]*)\)", str(attributes)))


@pytest.mark.parametrize("name", NAMES)
def test_what_scrolls_can_be_reached_by_keyboard_and_is_named(name: str) -> None:
    for _, attributes in outline(name).elements:
        if attributes.get("class") in ("scroll", "plot"):
            assert attributes["tabindex"] == "0"
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")


def test_a_missing_picture_leaves_its_table() -> None:
    document = built(scenarios.regressed())
    found = Outline(render_html(document, {}))
    assert not found.all("svg")
    assert "ratio-forest-figures" not in page("regressed")
    assert any(table.get("id") == "forest-figures" for table in found.all("table"))


def test_a_huge_report_lists_some_rows_and_counts_the_rest() -> None:
    document = built(scenarios.huge(20_000))
    text = render_html(document, draw_plots(document))
    assert len(text) < 2_000_000
    assert "500 of 4,000 rows are listed; comparison.json in the bundle lists every row." in text


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "wash"])
@pytest.mark.parametrize("ink", ["ink", "muted", "good", "bad", "doubt", "head", "base"])
def test_text_stands_out_from_its_ground_by_wcag_aa(scheme: int, ground: str, ink: str) -> None:
    values = [match[1] for match in re.finditer(rf"--{ink}: (#[0-9a-f]{{6}})", asset("report.css"))]
    grounds = [match[1] for match in re.finditer(rf"--{ground}: (#[0-9a-f]{{6}})", asset("report.css"))]
    assert len(values) == len(grounds) == 2
    assert contrast(values[scheme], grounds[scheme]) >= 4.5  # WCAG 2.2, 1.4.3 contrast (minimum)


@pytest.mark.parametrize("name", ["all_green", "regressed", "undecided", "incomparable", "no_baseline"])
def test_a_count_that_is_not_zero_leads_to_its_rows(name: str) -> None:
    text = page(name)
    for count in documented(name).verdict.counts:
        assert (count.at != "") == (count.number != "0" or count.word == "passed")
        if count.at:
            assert f'<a href="#{count.at}"><b>{count.number}</b>' in text
            assert f'id="{count.at}"' in text


def test_a_count_that_leads_nowhere_is_refused() -> None:
    document = documented("regressed")
    astray = replace(document.verdict, counts=(Count("1", "lost", "of 1", at="nowhere"),))
    with pytest.raises(ValueError, match="nowhere"):
        replace(document, verdict=astray)
