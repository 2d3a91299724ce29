"""History over many bundles: what is a step, what is a bad night, what breaks a series, and what noise does not do."""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from harness.codec import decode
from harness.commands import history as history_cli
from harness.errors import UsageError
from harness.model import Evidence
from harness.trends import history_table
from harness.trends.history import History, Series, build_history
from harness.trends.levels import confirmed_steps, corrected_p, night_margin, proposed_steps
from harness.verdict import MetricOutcome
from tests.harness.conftest import call_here
from tests.report import nights as made
from tests.report.fixtures import LATENCY, RESOURCES
from tests.report.nights import nights


@pytest.fixture(scope="module")
def thirty() -> History:
    return build_history(nights())


def series(history: History, node: str, name: str) -> Series:
    return next(it for it in history.series if (it.node, it.name) == (node, name))


def of_mode(history: History, mode: str) -> Series:
    return series(history, f"{LATENCY}[{mode}]", "round_ms")


def test_a_lasting_change_of_level_is_one_step_in_spite_of_a_bad_night(thirty: History) -> None:
    found = of_mode(thirty, "greedy-lookup")
    assert [(step.at, step.outcome) for step in found.steps] == [(made.STEP_AT, MetricOutcome.WORSE)]
    step = found.steps[0]
    assert step.ratio == pytest.approx(1.08, abs=0.01)
    assert step.p is not None
    assert step.p < 0.001
    assert (step.n_before, step.n_after) == (18, 10)  # two of the first twenty are not judged


def test_a_step_names_the_commit_it_came_with(thirty: History) -> None:
    assert of_mode(thirty, "greedy-lookup").steps[0].also[0].startswith("commit ")


def test_better_is_a_step_too(thirty: History) -> None:
    found = of_mode(thirty, "sampled-plain")
    assert [(step.at, step.outcome) for step in found.steps] == [(made.BETTER_AT, MetricOutcome.BETTER)]
    assert found.since_break is MetricOutcome.BETTER


def test_bad_nights_at_the_end_are_counted_before_they_are_a_step(thirty: History) -> None:
    found = of_mode(thirty, "sampled-lookup")
    assert found.steps == ()
    assert found.streak is not None
    assert (found.streak.nights, found.streak.outcome) == (made.BAD_NIGHTS, MetricOutcome.WORSE)


def test_other_tokens_break_a_series_and_nothing_is_said_across(thirty: History) -> None:
    found = of_mode(thirty, "greedy-plain")
    assert [(broken.at, broken.reason) for broken in found.breaks] == [
        (made.OTHER_TOKENS_AT, "other tokens were generated")
    ]
    assert found.steps == ()
    assert found.streak is None
    tokens = series(thirty, found.node, "tokens")
    assert [(step.at, step.outcome) for step in tokens.steps] == [(made.OTHER_TOKENS_AT, MetricOutcome.CHANGED)]


def test_another_machine_breaks_a_series() -> None:
    moved = [
        replace(night, environment={**night.environment, "cpu.model": "another"}) if place >= 20 else night
        for place, night in enumerate(nights())
    ]
    found = of_mode(build_history(moved), "sampled-plain")
    assert [broken.at for broken in found.breaks] == [20]
    assert found.breaks[0].reason.startswith("cpu.model")


def test_another_device_is_another_series() -> None:
    other = [replace(night, device_key="sm70-v100sxm2-32g-x4", digest=night.digest + "x") for night in nights(4)]
    keys = [it.device_key for it in build_history([*nights(4), *other]).series if it.name == "round_ms"]
    assert sorted(set(keys)) == ["cpu-x86-64", "sm70-v100sxm2-32g-x4"]
    assert len(keys) == 8


def test_an_exact_number_steps_at_once(thirty: History) -> None:
    found = series(thirty, RESOURCES, "paged_decode_d128 registers")
    assert [(s.at, s.before, s.after, s.p, s.outcome) for s in found.steps] == [
        (made.REGISTERS_AT, 90, 96, None, MetricOutcome.WORSE)
    ]


def test_unfit_and_carried_points_are_kept_and_not_judged(thirty: History) -> None:
    points = of_mode(thirty, "sampled-plain").points
    assert points[made.UNFIT_AT].left_out == "unfit for timing: a tracer is set"
    assert points[made.CARRIED_AT].left_out == "carried over, not measured"
    assert sum(bool(point.left_out) for point in points) == 2


def test_order_is_that_of_time_and_a_bundle_counts_once() -> None:
    shuffled = list(nights())
    random.Random(3).shuffle(shuffled)
    assert build_history([*shuffled, *shuffled[:5]]) == build_history(nights())


def test_worse_series_come_first(thirty: History) -> None:
    steady = [not (it.steps or it.streak or it.breaks) for it in thirty.series]
    assert steady == sorted(steady)
    assert thirty.series[0].since_break is MetricOutcome.WORSE


def test_a_mended_series_is_not_called_worse() -> None:
    values = [10.0] * 8 + [12.0] * 8 + [10.0] * 8
    found = of_mode(build_history(with_values(values)), "greedy-plain")
    assert [step.outcome for step in found.steps] == [MetricOutcome.WORSE, MetricOutcome.BETTER]
    assert found.since_break is MetricOutcome.SAME


def test_nights_on_both_sides_are_no_streak() -> None:
    """The last night is out of line; with the one before it, out of line the other way, they agree in nothing."""
    found = of_mode(build_history(with_values([10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 8.0, 12.0])), "greedy-plain")
    assert found.streak is not None
    assert (found.streak.nights, found.streak.outcome) == (1, MetricOutcome.WORSE)


def with_values(values: list[float]) -> list[Evidence]:
    """Nights on which greedy-plain took ``values``."""
    nodes = f"{LATENCY}[greedy-plain]"
    changed = []
    for night, value in zip(nights(), values, strict=False):
        latency = night.scopes[1]
        samples = tuple(replace(s, values=(value,), rounds=(), unfit=()) for s in latency.samples if s.node == nodes)
        same = tuple(replace(s, token_sha256="0" * 64) for s in samples)
        scope = replace(latency, origin=nights()[0].scopes[1].origin, samples=same)
        changed.append(replace(night, scopes=(night.scopes[0], scope)))
    return changed


# ---- what chance does: seeded, so that it does the same each time ---------------------------------------------------


def noisy(seed: int, n: int, sigma: float, step: float = 0.0, last: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [10 * math.exp(chance.gauss(0, sigma) + (step if place >= n - last else 0)) for place in range(n)]


@pytest.mark.parametrize(("n", "sigma"), [(10, 0.02), (20, 0.02), (40, 0.05), (90, 0.01)])
def test_noise_alone_seldom_makes_a_step(n: int, sigma: float) -> None:
    found = sum(bool(confirmed_steps(noisy(seed, n, sigma), 0.03)) for seed in range(200))
    assert found <= 10  # the test corrects for the places searched at the 5 % level, so at most 5 % of 200


@pytest.mark.parametrize("n", [15, 30, 90])
def test_six_per_cent_over_one_per_cent_of_noise_is_found_after_five_nights(n: int) -> None:
    found = sum(confirmed_steps(noisy(seed, n, 0.01, 0.06, 5), 0.03) == [n - 5] for seed in range(50))
    assert found >= 45


def test_one_wild_night_is_no_step() -> None:
    for seed in range(50):
        values = noisy(seed, 20, 0.01)
        values[10] *= 1.6
        assert confirmed_steps(values, 0.03) == []


def test_a_change_within_the_margin_is_no_step_however_sure() -> None:
    assert confirmed_steps(noisy(1, 60, 0.001, 0.02, 30), 0.03) == []
    assert confirmed_steps(noisy(1, 60, 0.001, 0.02, 30), 0.01) == [30]


def test_a_step_is_proposed_where_three_nights_stand_on_both_sides() -> None:
    low, high = [10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.1], [15.0, 15.1, 14.9]
    assert proposed_steps([*low, *high]) == [8]
    for few in ([*low, *high[:2]], [*high[:2], *low]):
        assert all(3 <= edge <= len(few) - 3 for edge in proposed_steps(few))
    assert proposed_steps([10.0, 10.0, 15.0, 15.0, 15.0]) == []


def test_the_p_of_a_step_counts_the_places_where_it_could_have_been() -> None:
    """Four below four: 2 of the 70 orderings, times the places in between that leave three nights a side."""
    below, above = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    assert corrected_p(below, above, 8) == pytest.approx(3 * 2 / 70)
    assert corrected_p(below, above, 12) == pytest.approx(7 * 2 / 70)
    assert corrected_p(below, above, 6) == pytest.approx(2 / 70)
    assert corrected_p(below, above, 100) == 1.0


def test_a_night_may_stray_by_the_margin_or_by_three_deviations_whichever_is_more() -> None:
    assert night_margin([10.0, 10.0, 10.0, 10.0], 0.03) == 0.03
    # Neighbours that differ by 2 % of a normal law lie 0.02 * 1.0483 apart in sigma.
    jumps = [10.0, 10.0 * math.exp(0.02), 10.0, 10.0 * math.exp(0.02)]
    assert math.log1p(night_margin(jumps, 0.03)) == pytest.approx(3 * 1.0483 * 0.02)


def test_three_nights_against_three_are_too_few() -> None:
    assert confirmed_steps([10, 10.1, 9.9, 12, 12.1, 11.9], 0.03) == []


# ---- the command ----------------------------------------------------------------------------------------------------


def test_csv_has_a_line_a_point_and_no_formula(thirty: History) -> None:
    first = replace(thirty.series[0], node="=HYPERLINK(1)")
    text = history_table.to_csv(replace(thirty, series=(first, *thirty.series[1:])))
    rows = list(csv.DictReader(StringIO(text, newline="")))
    assert len(rows) == sum(len(it.points) for it in thirty.series)
    assert rows[0]["node"] == "'=HYPERLINK(1)"
    assert [row["step"] for row in rows if row["step"]].count("WORSE") == 2


def test_the_wide_table_has_a_line_a_series_and_a_column_a_bundle(thirty: History) -> None:
    first = thirty.series[0]
    unfit = replace(first.points[0], left_out="unfit for timing: traced")
    gone = replace(first, points=(unfit, *first.points[1:]))
    rows = list(csv.reader(StringIO(history_table.to_wide_csv(replace(thirty, series=(gone, *thirty.series[1:]))))))
    head, lines = rows[0], {tuple(row[1:4]): row[6:] for row in rows[1:]}
    assert head[6:] == [f"{bundle.created} {bundle.label}" for bundle in thirty.bundles]
    assert len(lines) == len(thirty.series)
    values = lines[first.scope, first.node, first.name]
    assert values[0] == ""  # what takes no part leaves a gap, never a zero
    assert [float(text) for text in values[1:]] == [point.value for point in first.points[1:]]


def test_a_digest_of_digits_stays_one(thirty: History) -> None:
    bundles = (replace(thirty.bundles[0], digest="1e5", commit="0010"), *thirty.bundles[1:])
    text = history_table.to_csv(replace(thirty, bundles=bundles))
    row = next(row for row in csv.DictReader(StringIO(text, newline="")) if row["bundle"] == bundles[0].label)
    assert (row["digest"], row["commit"]) == ("1e5", "0010")


def test_json_reads_back_as_the_same_history(thirty: History) -> None:
    content = history_cli.rendered("json", thirty, color=False, width=100)
    assert json.loads(content)["margin"] == 0.03
    assert decode(content, History, "history.json") == thirty


def test_only_keeps_the_series_asked_for(thirty: History) -> None:
    assert {it.name for it in history_cli.only(thirty, "round_ms").series} == {"round_ms"}
    with pytest.raises(UsageError, match="no series holds 'nothing'"):
        history_cli.only(thirty, "nothing")


def test_a_folder_without_bundles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no sealed bundle in"):
        history_cli.find_bundles([tmp_path])
    with pytest.raises(UsageError, match="there is no folder"):
        history_cli.find_bundles([tmp_path / "absent"])


def test_real_bundles_give_a_history_in_every_form(sealed_once: Path) -> None:
    shown = call_here(sealed_once, "history", "artifacts/bundles")
    assert shown.code == 0
    assert "2 bundles" in shown.out.splitlines()[0]
    for form in history_cli.FORMS:
        made_here = sealed_once / "artifacts" / f"history.{form}"
        assert call_here(sealed_once, "history", "artifacts/bundles", "--format", form, "-o", str(made_here)).code == 0
        assert made_here.stat().st_size > 500


def test_a_spoilt_bundle_is_named_left_out_and_ends_in_3(sealed: Path, bundle: Path) -> None:
    about = bundle / "data" / "bundle.json"
    about.write_bytes(about.read_bytes().replace(b"1", b"2", 1))
    shown = call_here(sealed, "history", "artifacts/bundles")
    assert shown.code == 3
    assert "1 bundle" in shown.out.splitlines()[0]
    assert f"not read     {bundle.relative_to(sealed)}" in shown.out


def test_options_that_cannot_be_meant_are_refused(sealed_once: Path) -> None:
    assert call_here(sealed_once, "history", "artifacts/bundles", "--margin", "3").code == 2
    wrong = call_here(sealed_once, "history", "artifacts/bundles", "--device-key", "sm99")
    assert wrong.code == 2
    assert "there are bundles of" in wrong.err
