"""Realistic evidence and comparisons to render, from a fixed seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from harness.model import (
    Better,
    CaseResult,
    CaseStatus,
    Evidence,
    Metric,
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
