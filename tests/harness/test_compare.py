"""Outcomes of cases and numbers, on hand-made evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.comparability import differences
from harness.compare import compare
from harness.model import (
    Assume,
    Better,
    CaseStatus,
    Evidence,
    Metric,
    Origin,
    OriginKind,
    Pairing,
    Samples,
    ScopeEvidence,
    TokenControl,
)
from harness.verdict import CaseOutcome, Comparison, MetricOutcome, MetricRow, Policy, Quarantine
from tests.harness.build import MACHINE, SHA, case, evidence, metric, samples, scope, tokens

S = CaseStatus
POLICY = Policy()
EIGHT = (10.0, 10.1, 10.2, 10.0, 10.1, 10.2, 10.05, 10.15)


def of_one_case(base: CaseStatus | None, head: CaseStatus | None) -> tuple[str, str]:
    before = scope(*([case("n", base)] if base else []), case("other"))
    after = scope(*([case("n", head)] if head else []), case("other"))
    rows = compare(evidence(before, label="base"), evidence(after), POLICY).cases
    row = next(row for row in rows if row.node == "n")
    return row.outcome.value, row.reason


@pytest.mark.parametrize(
    ("base", "head", "outcome"),
    [
        (S.PASSED, S.PASSED, "UNCHANGED"),
        (S.PASSED, S.FAILED, "BROKEN"),
        (S.PASSED, S.ERROR, "BROKEN"),
        (S.PASSED, S.CRASHED, "BROKEN"),
        (S.PASSED, S.UNKNOWN, "BROKEN"),
        (S.PASSED, S.XFAILED, "BROKEN"),
        (S.PASSED, S.SKIPPED, "SKIPPED"),
        (S.PASSED, S.FLAKY, "FLAKY"),
        (S.PASSED, S.NOT_RUN, "MISSING"),
        (S.PASSED, None, "MISSING"),
        (S.SKIPPED, None, "MISSING"),
        (S.FAILED, S.PASSED, "FIXED"),
        (S.SKIPPED, S.PASSED, "FIXED"),
        (S.XFAILED, S.PASSED, "FIXED"),
        (S.FLAKY, S.PASSED, "FIXED"),
        (S.FAILED, S.FAILED, "UNCHANGED"),
        (S.FAILED, S.ERROR, "UNCHANGED"),
        (S.FAILED, S.CRASHED, "BROKEN"),
        (S.FAILED, S.XFAILED, "UNCHANGED"),
        (S.FAILED, S.SKIPPED, "SKIPPED"),
        (S.SKIPPED, S.SKIPPED, "SKIPPED"),
        (S.SKIPPED, S.FAILED, "BROKEN"),
        (S.XFAILED, S.XFAILED, "UNCHANGED"),
        (S.XFAILED, S.FAILED, "BROKEN"),
        (S.FLAKY, S.FAILED, "BROKEN"),
        (None, S.PASSED, "NEW"),
        (None, S.XFAILED, "NEW"),
        (None, S.SKIPPED, "SKIPPED"),
        (None, S.FAILED, "BROKEN"),
        (None, S.CRASHED, "BROKEN"),
        (None, S.UNKNOWN, "BROKEN"),
        (None, S.FLAKY, "FLAKY"),
        (None, S.NOT_RUN, "BROKEN"),
    ],
)
def test_every_pair_of_statuses(base: CaseStatus | None, head: CaseStatus | None, outcome: str) -> None:
    assert of_one_case(base, head)[0] == outcome


def test_deselected_cases_are_not_missing() -> None:
    head = evidence(scope(case("n", S.NOT_RUN, "deselected on the command line")))
    (row,) = compare(evidence(scope(case("n"))), head, POLICY).cases
    assert (row.outcome, row.head) == (CaseOutcome.SKIPPED, S.NOT_RUN)


def test_a_partial_run_compares_only_its_scopes() -> None:
    base = evidence(scope(case("a")), scope(case("b"), name="latency"), label="base")
    head = evidence(scope(case("a")), scope(case("c"), name="sampling"))
    compared = compare(base, head, POLICY)
    assert {row.node: row.outcome for row in compared.cases} == {"a": CaseOutcome.UNCHANGED, "c": CaseOutcome.NEW}
    rows = {row.scope: row for row in compared.scopes}
    assert rows["latency"].head_cases is None
    assert rows["latency"].origin == Origin(OriginKind.NOT_RUN, "not part of this run")
    assert rows["sampling"].base_cases is None


def test_a_scope_that_was_not_run_has_no_rows() -> None:
    not_run = ScopeEvidence("kernels", Origin(OriginKind.NOT_RUN, "no model data"))
    compared = compare(evidence(scope(case("a"))), evidence(not_run), POLICY)
    assert compared.cases == ()
    assert compared.scopes[0].head_cases is None


def test_a_rename_is_suggested_and_still_missing() -> None:
    base = evidence(scope(case("t.py::test_rms_norm_rows"), case("t.py::test_x[8]")))
    head = evidence(scope(case("t.py::test_rms_norm_columns"), case("t.py::test_x[16]")))
    rows = {row.node: row for row in compare(base, head, POLICY).cases}
    missing = rows["t.py::test_rms_norm_rows"]
    assert missing.outcome is CaseOutcome.MISSING
    assert missing.reason.endswith("renamed to t.py::test_rms_norm_columns?")
    assert "renamed" not in rows["t.py::test_x[8]"].reason


HELD = {"n": Quarantine("n", "me", "driver bug", "2026-06-30")}


def quarantined(status: CaseStatus, today: str) -> Comparison:
    return compare(evidence(scope(case("n"))), evidence(scope(case("n", status))), POLICY, HELD, today)


def test_quarantine_holds_until_it_ends_and_alarms() -> None:
    held = quarantined(S.FAILED, "2026-06-30")
    assert held.cases[0].outcome is CaseOutcome.QUARANTINED
    assert held.alarms == ()
    assert "driver bug (owner me, until 2026-06-30); now failed" in held.cases[0].reason
    ended = quarantined(S.FAILED, "2026-07-01")
    assert ended.cases[0].outcome is CaseOutcome.BROKEN
    assert ended.alarms == ("the quarantine of n ended on 2026-06-30 (owner me): mend the case or renew it",)
    passing = quarantined(S.PASSED, "2026-06-01")
    assert passing.cases[0].outcome is CaseOutcome.UNCHANGED
    assert passing.alarms == ("n is in quarantine (owner me) and passes: lift it",)


def test_quarantine_holds_failures_alone() -> None:
    assert quarantined(S.SKIPPED, "2026-06-01").cases[0].outcome is CaseOutcome.SKIPPED
    assert quarantined(S.NOT_RUN, "2026-06-01").cases[0].outcome is CaseOutcome.MISSING
    vanished = compare(evidence(scope(case("n"))), evidence(scope(case("other"))), POLICY, HELD, "2026-06-01")
    assert {row.node: row.outcome for row in vanished.cases}["n"] is CaseOutcome.MISSING


def test_what_was_collected_and_never_run_is_no_case_that_ran() -> None:
    head = evidence(scope(case("n", S.NOT_RUN), case("m"), case("k", S.NOT_RUN, "deselected on the command line")))
    (row,) = compare(None, head, POLICY).scopes
    assert (row.head_cases, row.head_passed) == (1, 1)


# ---- numbers --------------------------------------------------------------------------------------------------------


def numbers(base: ScopeEvidence, head: ScopeEvidence, facts: dict[str, str] | None = None) -> dict[str, MetricRow]:
    before, after = evidence(base, label="base"), evidence(head, facts=facts)
    return {row.name: row for row in compare(before, after, POLICY).metrics}


def with_metric(value: float, better: Better = Better.LOWER, unit: str = "register") -> ScopeEvidence:
    return scope(case("n"), metrics=(metric("n", value, better, unit),))


@pytest.mark.parametrize(
    ("base", "head", "outcome"),
    [
        (with_metric(40), with_metric(40), "SAME"),
        (with_metric(40), with_metric(41), "WORSE"),
        (with_metric(40), with_metric(39), "BETTER"),
        (with_metric(40, Better.HIGHER), with_metric(39, Better.HIGHER), "WORSE"),
        (with_metric(40, Better.NEITHER), with_metric(41, Better.NEITHER), "CHANGED"),
        (with_metric(0.1 + 0.2), with_metric(0.3), "BETTER"),
        (with_metric(1.5, unit="s"), with_metric(1500, unit="ms"), "SAME"),
        (with_metric(1.5, unit="s"), with_metric(1500.0001, unit="ms"), "WORSE"),
        (with_metric(1, unit="MiB"), with_metric(1, unit="ms"), "CHANGED"),
    ],
)
def test_exact_numbers(base: ScopeEvidence, head: ScopeEvidence, outcome: str) -> None:
    assert numbers(base, head)["count"].outcome.value == outcome


def test_a_single_noisy_number_is_never_judged() -> None:
    def peak(value: float, assume: Assume) -> ScopeEvidence:
        return scope(case("n"), metrics=(Metric("n", "peak", value, "MiB", Better.LOWER, assume),))

    row = numbers(peak(100, Assume.NOTHING), peak(200, Assume.NOTHING))["peak"]
    assert row.outcome is MetricOutcome.INCOMPARABLE
    assert "record repeats with samples()" in row.reason
    # A number that was exact does not escape by being called noisy now.
    assert numbers(peak(100, Assume.EXACT), peak(200, Assume.NOTHING))["peak"].outcome is MetricOutcome.WORSE
    assert numbers(peak(100, Assume.NOTHING), peak(200, Assume.EXACT))["peak"].outcome is MetricOutcome.WORSE


def test_a_number_that_vanished() -> None:
    row = numbers(with_metric(1), scope(case("n")))["count"]
    assert (row.outcome, row.reason) == (MetricOutcome.MISSING, "its case passes and no longer states it")
    broken = numbers(with_metric(1), scope(case("n", S.FAILED)))["count"]
    assert (broken.outcome, broken.reason) == (MetricOutcome.INCOMPARABLE, "its case is failed")
    assert numbers(scope(case("n")), with_metric(1))["count"].outcome is MetricOutcome.NEW


def with_tokens(control: TokenControl) -> ScopeEvidence:
    return scope(case("n"), tokens=(control,))


def test_tokens() -> None:
    base = with_tokens(tokens("n", per_round=2.0))
    assert numbers(base, with_tokens(tokens("n", per_round=2.0)))["greedy"].outcome is MetricOutcome.SAME
    flipped = numbers(base, with_tokens(tokens("n", "c" * 64)))["greedy"]
    assert flipped.outcome is MetricOutcome.CHANGED
    assert "prompt 1 is the first of 1 that differ" in flipped.reason
    assert (flipped.base_text, flipped.head_text) == (SHA, "c" * 64)
    cut = numbers(base, with_tokens(tokens("n", finish=("length",), per_round=2.0)))["greedy"]
    assert cut.outcome is MetricOutcome.CHANGED
    assert "another end" in cut.reason
    assert numbers(base, with_tokens(tokens("n", per_round=1.9)))["greedy"].outcome is MetricOutcome.WORSE
    assert numbers(base, with_tokens(tokens("n", per_round=2.1)))["greedy"].outcome is MetricOutcome.BETTER
    two = [
        replace(tokens("n"), finish=("stop", "stop"), prompt_sha256=(SHA, SHA), sha256=SHA[:-1] + end) for end in "bc"
    ]
    assert numbers(with_tokens(two[0]), with_tokens(two[1]))["greedy"].reason.startswith(
        "other tokens: the whole hash differs"
    )
    counted = [replace(tokens("n"), acceptance_histogram=(3, rounds)) for rounds in (4, 5)]
    other = numbers(with_tokens(counted[0]), with_tokens(counted[1]))["greedy"]
    assert (other.outcome, other.reason) == (
        MetricOutcome.CHANGED,
        "same tokens and rounds, another acceptance histogram",
    )


def timed(
    values: tuple[float, ...], sha: str = SHA, finish: tuple[str, ...] = ("stop",), **extra: object
) -> ScopeEvidence:
    return scope(case("n"), tokens=(tokens("n", sha, finish),), samples=(samples("n", values, sha, **extra),))


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "SAME"), (1.1, "WORSE"), (0.9, "BETTER"), (1.03, "UNDECIDED")])
def test_times(factor: float, outcome: str) -> None:
    row = numbers(timed(EIGHT), timed(tuple(factor * value for value in EIGHT[:4])))["round_ms"]
    assert row.outcome.value == outcome
    assert row.ratio == pytest.approx(factor, rel=0.01)
    assert row.margin == 0.03
    assert row.interval is not None
    assert row.notes[-1].startswith("least possible p with 8 and 4 repeats")


def test_three_against_three_is_undecided_and_says_what_it_needs() -> None:
    row = numbers(timed(EIGHT[:3]), timed(tuple(2 * value for value in EIGHT[:3])))["round_ms"]
    assert row.outcome is MetricOutcome.UNDECIDED
    assert row.interval is None
    assert row.reason == "needs n = 5 at head: 3 against 3 repeats cannot reach the 95% level"


def test_the_margin_is_what_two_accepted_runs_differed_by() -> None:
    row = numbers(timed(EIGHT, aa_spread=0.2), timed(tuple(1.1 * value for value in EIGHT)))["round_ms"]
    assert (row.outcome, row.margin) == (MetricOutcome.SAME, 0.2)
    assert row.margin_source.startswith("A/A")


@pytest.mark.parametrize(
    ("head", "facts", "reason"),
    [
        (timed(EIGHT, "c" * 64), MACHINE, "other tokens were generated"),
        (timed(EIGHT, finish=("length",)), MACHINE, "head did not stop naturally"),
        (timed(EIGHT, unfit=("profiled",)), MACHINE, "head is unfit for timing: profiled"),
        (timed(EIGHT), {**MACHINE, "cpu.model": "Other"}, "cpu.model: base Some CPU, head Other (another processor)"),
        (timed(EIGHT), {**MACHINE, "gpu.uuids": "GPU-4"}, "gpu.uuids: base unknown, head GPU-4 (another set of GPUs"),
        (timed(EIGHT), {**MACHINE, "env.OMP_NUM_THREADS": "1"}, "env.OMP_NUM_THREADS: base unknown, head 1"),
        (timed(EIGHT), {k: v for k, v in MACHINE.items() if k != "native.sha256"}, "recorded on one side only"),
        (timed((0.0, 1.0)), MACHINE, "a value is not positive"),
    ],
)
def test_times_that_are_not_comparable(head: ScopeEvidence, facts: dict[str, str], reason: str) -> None:
    row = numbers(timed(EIGHT), head, facts)["round_ms"]
    assert row.outcome is MetricOutcome.INCOMPARABLE
    assert reason in row.reason
    assert row.interval is None


def test_a_base_that_hit_a_length_limit_is_no_measure_of_time() -> None:
    row = numbers(timed(EIGHT, finish=("length",)), timed(EIGHT))["round_ms"]
    assert (row.outcome, row.reason) == (
        MetricOutcome.INCOMPARABLE,
        "base did not stop naturally: a length limit ended it",
    )


def test_pairs_of_two_sessions_are_no_pairs() -> None:
    """Each side was run next to another build: only the two sides of one session are matched."""
    one, other = (Pairing(session, 0.05, 24, 0.01, "floor") for session in ("s", "t"))
    apart = numbers(timed(EIGHT, pairing=one), timed(EIGHT, pairing=other))["round_ms"]
    together = numbers(timed(EIGHT, pairing=one), timed(EIGHT, pairing=one))["round_ms"]
    assert apart.notes == ("least possible p with 8 and 8 repeats: 0.00016",)
    assert together.notes[0].startswith("8 pairs")


def test_the_error_is_shared_out_among_what_is_judged_and_nothing_else() -> None:
    """Four against four reach 95 % of one quantity, not 97.5 % of each of two; what cannot be judged takes no share."""

    def several(*names: str, unfit: str = "") -> ScopeEvidence:
        made = [replace(samples("n", EIGHT[:4], unfit=("profiled",) if n == unfit else ()), name=n) for n in names]
        return scope(case("n"), tokens=(tokens("n"),), samples=tuple(made))

    assert numbers(several("a"), several("a"))["a"].interval is not None
    both = numbers(several("a", "b"), several("a", "b"))
    assert {row.outcome for name, row in both.items() if name != "greedy"} == {MetricOutcome.UNDECIDED}
    assert "2 quantities are judged together, each at 97.5 %" in both["a"].notes
    assert numbers(several("a", "b"), several("a", "b", unfit="b"))["a"].interval is not None
    assert numbers(several("a"), several("a", "b"))["a"].interval is not None


def test_exact_numbers_are_compared_where_times_are_not() -> None:
    other = {**MACHINE, "cpu.model": "Other"}
    assert numbers(with_metric(1), with_metric(2), other)["count"].outcome is MetricOutcome.WORSE
    flipped = numbers(timed(EIGHT), timed(EIGHT, "c" * 64), other)
    assert flipped["greedy"].outcome is MetricOutcome.CHANGED


def test_a_failure_on_another_device_is_not_called_new() -> None:
    base, bad = scope(case("a")), scope(case("a", CaseStatus.FAILED))
    (row,) = compare(evidence(base), evidence(bad, facts={**MACHINE, "device_key": "sm70-x"}), POLICY).cases
    assert (row.outcome, row.base) == (CaseOutcome.BROKEN, None)
    assert row.reason.startswith("not comparable, and failed")


def test_nothing_is_compared_across_devices() -> None:
    other = {**MACHINE, "device_key": "sm70-v100sxm2-32g-x1"}
    base = scope(case("gone"), case("n", S.FAILED), metrics=(metric("n", 1),))
    head = scope(case("n"), case("bad", S.FAILED), metrics=(metric("n", 2),))
    lacking = compare(evidence(base), evidence(scope(case("n")), facts=other), POLICY)
    assert lacking.metrics == ()
    compared = compare(evidence(base), evidence(head, facts=other), POLICY)
    assert {row.node: row.outcome for row in compared.cases} == {"n": CaseOutcome.NEW, "bad": CaseOutcome.BROKEN}
    assert compared.metrics[0].outcome is MetricOutcome.INCOMPARABLE
    assumed = compare(evidence(base), evidence(head, facts=other), Policy(assume_comparable=True))
    assert assumed.metrics[0].outcome is MetricOutcome.WORSE
    assert "assumed comparable" in assumed.differences[0].reason


def test_jitter_is_tolerated_and_the_rest_is_shown() -> None:
    one = {**MACHINE, "cpu.mhz": "1", "host.name": "a", "git.commit": "x", "os.kernel": "5", "python.version": "3.11.1"}
    two = {**MACHINE, "cpu.mhz": "2", "host.name": "b", "git.commit": "y", "os.kernel": "6", "python.version": "3.11.2"}
    rows = differences(one, two)
    assert [(row.key, row.fatal) for row in rows] == [("os.kernel", False), ("python.version", False)]


def test_facts_that_neither_side_recorded() -> None:
    rows = differences({"device_key": "unknown"}, {"device_key": "unknown"})
    assert [(row.key, row.reason) for row in rows] == [
        ("device_key", "the device is not recorded"),
        ("cpu.model", "the processor is not recorded"),
    ]
    assert all(row.fatal for row in rows)
    assert not any(row.fatal for row in differences({}, {}, assume_comparable=True))


def test_facts_of_a_scope_stand_before_those_of_the_whole() -> None:
    own = {**MACHINE, "cpu.count": "64"}
    base = evidence(scope(case("n"), environment=own), scope(case("m"), name="latency"))
    compared = compare(base, evidence(scope(case("n")), scope(case("m"), name="latency")), POLICY)
    assert [(row.key, row.scope) for row in compared.differences] == [("cpu.count", "kernels")]


def test_a_difference_of_every_scope_is_said_once() -> None:
    facts = {**MACHINE, "cpu.count": "64"}
    base = evidence(scope(case("n")), scope(case("m"), name="latency"))
    head = evidence(scope(case("n")), scope(case("m"), name="latency"), facts=facts)
    assert [(row.key, row.scope) for row in compare(base, head, POLICY).differences] == [("cpu.count", "")]


def test_without_a_base_everything_is_new() -> None:
    head = evidence(timed(EIGHT))
    compared = compare(None, head, POLICY)
    assert compared.base == ""
    assert compared.cases[0].outcome is CaseOutcome.NEW
    assert {row.outcome for row in compared.metrics} == {MetricOutcome.NEW}


def test_comparing_a_thing_with_itself_finds_nothing() -> None:
    itself: Evidence = evidence(timed(EIGHT), replace(with_metric(3), scope="m"), scope(case("z", S.SKIPPED), name="x"))
    compared = compare(itself, itself, POLICY)
    assert {row.outcome for row in compared.cases} == {CaseOutcome.UNCHANGED, CaseOutcome.SKIPPED}
    assert {row.outcome for row in compared.metrics} == {MetricOutcome.SAME}
    assert compared.differences == ()
    assert isinstance(itself.scopes[0].samples[0], Samples)


@pytest.mark.parametrize("factor", [1.2, 0.8], ids=["slower", "faster"])
@pytest.mark.parametrize("side", ["base", "head"])
def test_a_difference_beside_a_busy_machine_decides_nothing(side: str, factor: float) -> None:
    sides = {"base": timed(EIGHT), "head": timed(tuple(factor * value for value in EIGHT))}
    sides[side] = replace(sides[side], doubts=("while it ran, 0.90 processors' worth of time went to other processes",))
    row = numbers(sides["base"], sides["head"])["round_ms"]
    assert row.outcome is MetricOutcome.UNDECIDED
    word = "WORSE" if factor > 1 else "BETTER"
    assert row.reason == (
        f"{word} by the figures, but {side}: while it ran, 0.90 processors' worth of time went to other processes: "
        "measure again on a quiet machine"
    )
    assert row.interval is not None


def test_a_busy_machine_takes_nothing_from_what_is_the_same_or_from_turns() -> None:
    """What agrees agreed in spite of it; bytes are no time; both sides of a session of turns met the same machine."""
    doubts = ("while it ran, 0.05 processors' worth of time was taken by other machines",)
    session = Pairing("s", 0.05, 24, 0.01, "floor")
    slower = tuple(1.2 * value for value in EIGHT)
    assert numbers(timed(EIGHT), replace(timed(EIGHT), doubts=doubts))["round_ms"].outcome is MetricOutcome.SAME
    base, head = (
        replace(timed(values), samples=(replace(samples("n", values), unit="MiB"),)) for values in (EIGHT, slower)
    )
    assert numbers(base, replace(head, doubts=doubts))["round_ms"].outcome is MetricOutcome.WORSE
    turns = numbers(timed(EIGHT, pairing=session), replace(timed(slower, pairing=session), doubts=doubts))["round_ms"]
    assert turns.outcome is MetricOutcome.WORSE
