from __future__ import annotations

from dataclasses import replace

import pytest

from harness.compare import compare
from harness.gate import decide, decide_run, regressed
from harness.model import CaseStatus, Evidence, Origin, OriginKind, ScopeEvidence, ScopeSummary
from harness.verdict import Comparison, ExitCode, GateDecision, Policy
from tests.harness.build import MACHINE, case, evidence, metric, samples, scope, tokens

S = CaseStatus
BASE = evidence(
    scope(case("a"), case("b"), tokens=(tokens("a"),), samples=(samples("a", (1.0, 1.01, 1.02, 1.03)),)),
    label="baselines/cpu-x86-64",
)


def verdict(
    head: ScopeEvidence,
    base: Evidence | None = BASE,
    *,
    strict: bool = False,
    facts: dict[str, str] | None = None,
) -> GateDecision:
    policy = Policy(strict=strict)
    return decide(compare(base, evidence(head, facts=facts), policy), policy)


def head(*cases: object, factor: float = 1.0, n: int = 4, **extra: object) -> ScopeEvidence:
    values = tuple(factor * value for value in (1.0, 1.01, 1.02, 1.03)[:n])
    given = {"tokens": (tokens("a"),), "samples": (samples("a", values),), **extra}
    return scope(*(cases or (case("a"), case("b"))), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scope_", "code", "reason"),
    [
        (head(), ExitCode.OK, ""),
        (head(case("a"), case("b", S.FAILED)), ExitCode.REGRESSION, "1 case broken: b"),
        (head(case("a")), ExitCode.REGRESSION, "1 case missing: b"),
        (head(case("a"), case("b", S.SKIPPED)), ExitCode.REGRESSION, "1 case skipped that passed at base: b"),
        (head(case("a"), case("b", S.FLAKY)), ExitCode.REGRESSION, "1 case flaky: failed, then passed: b"),
        (head(case("a"), case("b"), case("c", S.FAILED)), ExitCode.REGRESSION, "1 case new and not passing: c"),
        (head(case("a"), case("b"), case("c")), ExitCode.OK, ""),
        (head(case("a"), case("b"), case("c", S.SKIPPED)), ExitCode.OK, ""),
        (head(factor=1.5), ExitCode.REGRESSION, "1 number worse: a round_ms"),
        (head(factor=0.5), ExitCode.OK, ""),
        (head(tokens=(tokens("a", "c" * 64),), samples=()), ExitCode.REGRESSION, "1 number changed: a greedy"),
        (head(samples=()), ExitCode.REGRESSION, "1 number no longer stated: a round_ms"),
        (head(n=1), ExitCode.OK, "1 number undecided: a round_ms"),
        (head(case("a"), case("b", S.NOT_RUN, "deselected")), ExitCode.OK, "this run is partial: b"),
        (head(samples=(samples("a", (1.0,), unfit=("profiled",)),)), ExitCode.NOTHING_COMPARABLE, "profiled"),
    ],
)
def test_codes_follow_from_reasons(scope_: ScopeEvidence, code: ExitCode, reason: str) -> None:
    decision = verdict(scope_)
    assert decision.code is code
    assert reason in " / ".join(decision.reasons)


def test_undecided_only_matters_when_strict() -> None:
    decision = verdict(head(n=1), strict=True)
    assert decision.code is ExitCode.UNDECIDED
    assert decision.reasons[0].startswith("1 number undecided")


def test_the_gravest_reason_gives_the_code_and_comes_first() -> None:
    bad = head(case("a", S.FAILED), samples=(), problem="pytest died of SIGSEGV")
    decision = verdict(bad)
    assert decision.code is ExitCode.REGRESSION
    nothing_ran = scope(problem="pytest collected no case (exit code 5)")
    decision = verdict(nothing_ran)
    assert decision.code is ExitCode.EVIDENCE_BROKEN
    assert decision.reasons[0] == "scope kernels: pytest collected no case (exit code 5)"
    assert "2 cases missing: a; b" in decision.reasons


def test_other_devices_and_missing_baselines() -> None:
    other = verdict(head(), facts={**MACHINE, "device_key": "sm70-v100-x1"})
    assert other.code is ExitCode.NOTHING_COMPARABLE
    assert "device_key is cpu-x86-64 at base, sm70-v100-x1 at head" in other.reasons[0]
    failing = verdict(head(case("a", S.FAILED), samples=()), facts={**MACHINE, "device_key": "sm70-v100-x1"})
    assert failing.code is ExitCode.REGRESSION
    none = verdict(head(), evidence(label="baselines/cpu-x86-64"))
    assert none.code is ExitCode.NOTHING_COMPARABLE
    assert verdict(head(), None).code is ExitCode.OK
    assert verdict(head(case("a", S.FAILED), samples=()), None).code is ExitCode.REGRESSION


def test_another_device_in_one_scope_alone_is_no_small_thing() -> None:
    own = {**MACHINE, "device_key": "sm70-v100-x1"}
    base = evidence(scope(case("a")), scope(case("b"), name="latency"), label="base")
    mixed = evidence(scope(case("a")), scope(case("b"), name="latency", environment=own))
    decision = decide(compare(base, mixed, Policy()), Policy())
    assert decision.code is ExitCode.NOTHING_COMPARABLE
    assert decision.reasons[0].startswith("scope latency: nothing is comparable: device_key is cpu-x86-64 at base")


def test_a_scope_without_a_case_is_no_evidence() -> None:
    """However it came about: pytest's own word for it, "collected no case", is a problem of the scope beside this."""
    for nothing in (scope(), scope(case("a", S.NOT_RUN, "deselected on the command line"))):
        decision = verdict(nothing, None)
        assert (decision.code, decision.reasons[0]) == (ExitCode.EVIDENCE_BROKEN, "scope kernels: no case ran")


@pytest.mark.parametrize("before", [None, *S])
@pytest.mark.parametrize("now", S)
def test_a_row_is_a_regression_exactly_where_the_gate_calls_it_one(before: CaseStatus | None, now: CaseStatus) -> None:
    """What nights confirm and a report lists as regressed is what the exit code is about."""
    base = evidence(scope(case("other"), *([case("n", before)] if before else [])), label="base")
    compared = compare(base, evidence(scope(case("other"), case("n", now))), Policy())
    assert any(map(regressed, compared.cases)) == (decide(compared, Policy()).code is ExitCode.REGRESSION)


def test_a_new_scope_is_said_and_passes() -> None:
    new = scope(case("x"), name="routing")
    decision = decide(compare(BASE, evidence(new), Policy()), Policy())
    assert decision.code is ExitCode.OK
    assert "scope routing is NEW: baselines/cpu-x86-64 does not have it" in decision.reasons
    assert "scope kernels is not part of this run" in decision.reasons


def test_a_scope_that_could_not_be_run_is_not_ok() -> None:
    not_run = ScopeEvidence("kernels", Origin(OriginKind.NOT_RUN, "no model data"))
    decision = verdict(not_run)
    assert (decision.code, decision.reasons) == (
        ExitCode.NOTHING_COMPARABLE,
        ("scope kernels was not run: no model data",),
    )


def test_long_lists_are_cut_with_a_count() -> None:
    broken = scope(*(case(f"c{i}", S.FAILED) for i in range(9)))
    decision = verdict(broken)
    assert "9 cases new and not passing: c0; c1; c2; and 6 more" in decision.reasons


def test_alarms_and_incomparable_numbers_are_said() -> None:
    compared: Comparison = compare(BASE, evidence(head(), facts={**MACHINE, "cpu.model": "Other"}), Policy())
    decision = decide(replace(compared, alarms=("look here",)), Policy())
    assert decision.code is ExitCode.OK
    assert decision.reasons == ("1 number incomparable: a round_ms", "look here")


def test_every_metric_regression_is_named_with_its_case() -> None:
    base = evidence(scope(case("n"), metrics=(metric("n", 1),)), label="b")
    decision = decide(compare(base, evidence(scope(case("n"), metrics=(metric("n", 2),))), Policy()), Policy())
    assert decision.reasons[0] == "1 number worse: n count"


def summary(**fields: object) -> ScopeSummary:
    given = {"scope": "s", "origin": Origin(), "exit_code": 0, "seconds": 1.0, "counts": {"passed": 1}, **fields}
    return ScopeSummary(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (summary(), ExitCode.OK),
        (summary(counts={"passed": 1, "failed": 2}, exit_code=1), ExitCode.REGRESSION),
        (summary(counts={"crashed": 1}, exit_code=-11, problem="died"), ExitCode.REGRESSION),
        *((summary(counts={"passed": 1, kind: 1}), ExitCode.REGRESSION) for kind in ("failed", "error", "crashed")),
        (summary(counts={}, exit_code=5, problem="no case"), ExitCode.EVIDENCE_BROKEN),
        (summary(exit_code=1), ExitCode.REGRESSION),
        (summary(origin=Origin(OriginKind.NOT_RUN, "why"), counts={}, exit_code=None), ExitCode.OK),
    ],
)
def test_the_run_s_own_code(given: ScopeSummary, code: ExitCode) -> None:
    decision = decide_run([given])
    assert decision.code is code
    assert decision.reasons or code is ExitCode.OK
