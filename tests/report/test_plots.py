"""Pictures: well-formed, the same bytes each time, told apart without colour, each with its figures as text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from harness.report import draw_plots
from harness.report.document import Tone
from harness.report.palette import INKS, PAPER, TONE_INKS, TONE_MARKS
from tests.report import scenarios
from tests.report.rendered import built, documented, drawn

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["regressed", "no_baseline", "hostile", "history"])
def test_there_is_one_well_formed_svg_a_figure(name: str) -> None:
    document = documented(name)
    plots = drawn(name)
    assert set(plots) == {f"{figure.key}.svg" for figure in document.figures}
    for svg in plots.values():
        assert ElementTree.fromstring(svg).tag == f"{SVG}svg"


def test_the_same_document_gives_the_same_bytes_without_a_date() -> None:
    document = built(scenarios.regressed())
    first, second = drawn("regressed"), draw_plots(document)
    assert first == second
    assert all(b"dc:date" not in svg for svg in first.values())


def test_axes_say_quantity_unit_and_n() -> None:
    plots = drawn("regressed")
    assert "round_ms, ms  (dot: one round; bar: figure of the repeat)" in texts(plots["rounds-1.svg"])
    assert "base 1  (n 60)" in texts(plots["rounds-1.svg"])
    forest = [text.replace("\xa0", " ") for text in texts(plots["ratio-forest.svg"])]
    assert "median of head / median of base, with 95 % interval; shaded: margin" in forest
    assert any("n 6" in text for text in forest)
    assert {"rounds, n", "tokens emitted by a round", "head, 70 rounds"} <= set(texts(plots["acceptance-1.svg"]))
    assert {"Registers per", "Shared memory, B"} <= set(texts(plots["kernel-resources.svg"]))


def test_a_resource_that_moved_names_both_values() -> None:
    assert "96 (was 90)" in texts(drawn("regressed")["kernel-resources.svg"])


def test_only_named_inks_are_used_so_that_a_page_can_swap_them() -> None:
    allowed = {*INKS.values(), PAPER, "#ffffff", "#000000"}
    for svg in drawn("regressed").values():
        styles = " ".join(re.findall(r'style="([^"]*)"', svg.decode()))
        assert set(re.findall(r"#[0-9a-f]{6}\b", styles)) <= allowed


def test_good_bad_and_doubt_differ_in_shape_not_only_in_colour() -> None:
    judged = (Tone.GOOD, Tone.BAD, Tone.DOUBT, Tone.QUIET)
    assert len({TONE_MARKS[tone] for tone in judged}) == len({TONE_INKS[tone] for tone in judged}) == len(judged)


def test_every_figure_has_a_sentence_and_a_table() -> None:
    for figure in built(scenarios.regressed()).figures:
        assert figure.alt.endswith(".")
        assert figure.twin.rows


def test_dollar_signs_are_text_not_mathematics() -> None:
    plots = drawn("hostile")
    assert any("$" in text for svg in plots.values() for text in texts(svg))


def test_telemetry_has_a_panel_a_quantity_on_one_time_axis() -> None:
    found = texts(drawn("unfit")["telemetry-latency.svg"])
    assert {"SM clock, MHz", "power, W", "temperature, °C", "power cap"} <= set(found)
    assert found.count("seconds since the scope began to be watched, s") == 1
    figure = next(figure for figure in documented("unfit").figures if figure.key == "telemetry-latency")
    assert figure.alt == "Over 1 min 59 s; clocks were held down by power cap."
