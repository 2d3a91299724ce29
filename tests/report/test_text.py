"""The one-screen verdict: it fits, it says the gravest thing first, and nothing in it drives a terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from harness.report import render_text
from tests.report import scenarios
from tests.report.rendered import built, documented
from tests.report.scenarios import SCENARIOS


@pytest.mark.parametrize("name", [*SCENARIOS, "history", "huge"])
@pytest.mark.parametrize(("width", "height"), [(100, 40), (80, 24), (60, 30)])
def test_it_fits_the_screen(name: str, width: int, height: int) -> None:
    document = built(scenarios.huge(5_000)) if name == "huge" else documented(name)
    lines = render_text(document, width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_exit_code_and_limits_always_stand(name: str) -> None:
    scenario = SCENARIOS[name]()
    document = built(scenario)
    lines = render_text(document).splitlines()
    assert lines[0].startswith(document.verdict.word.upper())
    assert f"exit {int(scenario.decision.code)}" in lines[0]
    assert "Not run, not claimed" in lines


def test_regressions_come_with_both_sides_and_reason() -> None:
    text = render_text(built(scenarios.regressed()))
    assert "BROKEN" in text
    assert "passed → failed: first mismatch at [11, 3, 42]" in text
    assert "11.80 ms (n 6) → 12.88 ms (n 6)  +9.1 %" in text


def test_what_does_not_fit_is_counted() -> None:
    text = render_text(built(scenarios.huge(5_000)))
    assert "more, in the report" in text


def test_many_metrics_with_one_reason_are_one_line() -> None:
    text = render_text(built(scenarios.other_machine()))
    assert text.count("INCOMPARABLE") == 1
    assert "94 metrics: device_key: cpu-x86-64 against sm70-v100sxm2-32g-x4" in text


def test_the_ptx70_limit_is_not_cut() -> None:
    joined = " ".join(render_text(built(scenarios.unfit())).split())
    assert "correctness and memory-bound speed, not V100 speed." in joined


def test_plain_text_has_no_escape_and_color_has_only_styles() -> None:
    document = built(scenarios.hostile())
    assert "\x1b" not in render_text(document)
    colored = render_text(built(scenarios.regressed()), color=True)
    assert "\x1b[1;31mREGRESSION" in colored
    assert "\u202e" not in render_text(document, color=True)


def test_color_changes_no_word() -> None:
    document = built(scenarios.regressed())
    stripped = "".join(part.partition("m")[2] for part in ("m" + render_text(document, color=True)).split("\x1b["))
    assert stripped == render_text(document)


def test_a_tiny_screen_gets_what_a_verdict_needs() -> None:
    document = built(scenarios.regressed())
    assert render_text(document, width=20, height=3) == render_text(document, width=60, height=24)
