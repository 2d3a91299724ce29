"""The page in a real headless browser: with a keyboard, on a narrow screen, in the dark, without scripts."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.report import browser, scenarios
from tests.report.browser import Browser
from tests.report.rendered import documented, page

CASES = len(scenarios.regressed().comparison.cases)
PAGES = ("regressed", "hostile", "history")
EXECUTABLE = browser.found()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(EXECUTABLE is None, reason=f"none of {', '.join(browser.NAMES)} is installed"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    assert EXECUTABLE
    with Browser(EXECUTABLE) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name in PAGES:
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(page(name), encoding="utf-8")
    return paths


def shades(screenshot: str) -> tuple[float, int]:
    """Mean brightness (0 to 255) and how many different ones there are."""
    image = Image.open(BytesIO(base64.b64decode(screenshot))).convert("L")
    histogram = image.histogram()
    mean = sum(shade * n for shade, n in enumerate(histogram)) / sum(histogram)
    return mean, sum(n > 0 for n in histogram)


@pytest.mark.parametrize("name", PAGES)
def test_it_loads_without_an_error_a_request_or_a_dialog(chromium: Browser, pages: dict[str, Path], name: str) -> None:
    page = chromium.open(pages[name])
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    asked = [e["params"]["request"]["url"] for e in chromium.events if e.get("method") == "Network.requestWillBeSent"]
    assert asked == [pages[name].as_uri()]
    troubles = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
    assert [event for event in chromium.events if event.get("method") in troubles] == []


def test_light_and_dark_follow_the_reader(chromium: Browser, pages: dict[str, Path]) -> None:
    light, light_shades = shades(chromium.open(pages["regressed"]).screenshot())
    dark, dark_shades = shades(chromium.open(pages["regressed"], dark=True).screenshot())
    assert light > 200 > 80 > dark
    assert min(light_shades, dark_shades) > 50


def test_pictures_take_the_inks_of_the_dark_page(chromium: Browser, pages: dict[str, Path]) -> None:
    ask = "getComputedStyle(document.querySelector('figure svg text')).fill"
    inks = [chromium.open(pages["regressed"], dark=dark).evaluate(ask) for dark in (False, True)]
    assert inks == ["rgb(28, 30, 33)", "rgb(231, 232, 228)"]


@pytest.mark.parametrize("width", [320, 420, 768, 1280])
def test_the_page_itself_never_scrolls_sideways(chromium: Browser, pages: dict[str, Path], width: int) -> None:
    page = chromium.open(pages["regressed"], width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_phone_shows_a_table_s_whole_title_however_far_the_table_is_scrolled(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    page = chromium.open(pages["regressed"], width=390)
    titles = "[...document.querySelectorAll('caption:not(.unseen) > span')].filter(title => title.offsetParent)"
    for scrolled in (0, 200):
        page.evaluate(f"document.querySelectorAll('.scroll').forEach(table => table.scrollLeft = {scrolled})")
        ends = page.evaluate(
            f"{titles}.flatMap(t => [t.getBoundingClientRect().left, t.getBoundingClientRect().right])"
        )
        assert ends
        assert min(ends) >= 0
        assert max(ends) <= 390


def test_the_first_tab_offers_to_skip_and_enter_opens_a_fold(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["regressed"])
    page.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.evaluate("document.querySelector('details.block summary').focus()")
    page.press("Enter")
    assert page.evaluate("document.querySelector('details.block').open")


def test_every_focus_is_seen(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["regressed"])
    seen = set()
    for _ in range(25):
        page.press("Tab")
        seen.add(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert "none" not in seen


def test_a_filter_keeps_the_rows_that_hold_the_words(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["regressed"])
    page.evaluate("document.querySelector('#cases').closest('details').open = true")
    page.evaluate("document.querySelector('#cases').closest('details').querySelector('input').focus()")
    page.type("paged broken")
    visible = page.evaluate("[...document.querySelectorAll('#cases tbody tr')].filter(r => !r.hidden).length")
    status = page.evaluate(
        "document.querySelector('#cases').closest('details').querySelector('[role=status]').textContent"
    )
    assert visible == 1
    assert status == f"1 of {CASES} rows"


def test_a_column_sorts_by_its_numbers_and_says_so(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["regressed"])
    button = "document.querySelector('#samples thead th:nth-child(4) button')"
    page.evaluate(f"{button}.focus()")
    page.press("Enter")
    values = "[...document.querySelectorAll('#samples tbody tr')].map(r => Number(r.cells[3].dataset.sort))"
    rising = page.evaluate(values)
    assert rising == sorted(rising)
    page.press("Enter")
    assert page.evaluate(values) == sorted(rising, reverse=True)
    assert page.evaluate(f"{button}.closest('th').getAttribute('aria-sort')") == "descending"


def test_without_scripts_every_row_is_there(chromium: Browser, pages: dict[str, Path]) -> None:
    page = chromium.open(pages["regressed"], scripts=False)
    roles = page.accessible()
    assert ("heading", "Regression") in roles
    assert not [name for role, name in roles if role == "searchbox"]
    document = page.call("DOM.getDocument", depth=-1)["root"]
    table = page.call("DOM.querySelectorAll", nodeId=document["nodeId"], selector="#cases tbody tr")
    assert len(table["nodeIds"]) == CASES


def test_a_screen_reader_is_given_landmarks_tables_and_named_pictures(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    page = chromium.open(pages["regressed"])
    roles = page.accessible()
    assert {"main", "navigation", "contentinfo", "table", "columnheader", "rowheader", "link"} <= {r for r, _ in roles}
    assert [name for role, name in roles if role == "table" and not name] == []
    pictures = [name for role, name in roles if role in ("image", "img")]
    assert len(pictures) == len(documented("regressed").figures)
    assert all(pictures)
    assert ("region", "What changed") in roles
