"""Thirty nights of evidence with known steps, breaks and bad nights, from a fixed seed."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

from harness.model import Evidence, Metric, Origin, OriginKind, Samples, ScopeEvidence
from tests.report.fixtures import ENVIRONMENT, LATENCY, evidence, kernels_scope, latency_scope, sha

NIGHTS = 30
STEP_AT = 20  # greedy-lookup is 8 % slower from here on
BETTER_AT = 12  # sampled-plain is 10 % quicker
OTHER_TOKENS_AT = 15  # greedy-plain generates other tokens, and is slower by as much as anything
REGISTERS_AT = 8  # paged_decode_d128 takes 96 registers instead of 90
UNFIT_AT = 5
CARRIED_AT = 6
SPIKE_AT = 25  # one bad night of greedy-lookup
BAD_NIGHTS = 2  # sampled-lookup, at the end


@cache
def nights(count: int = NIGHTS) -> tuple[Evidence, ...]:
    """The last ``count`` of the thirty nights."""
    return tuple(_night(night) for night in range(NIGHTS))[-count:]


def _night(night: int) -> Evidence:
    slower = {
        "greedy-lookup": (1.08 if night >= STEP_AT else 1.0) * (1.5 if night == SPIKE_AT else 1.0),
        "sampled-plain": 0.9 if night >= BETTER_AT else 1.0,
        "greedy-plain": 1.3 if night >= OTHER_TOKENS_AT else 1.0,
        "sampled-lookup": 1.07 if night >= NIGHTS - BAD_NIGHTS else 1.0,
    }
    latency = latency_scope(100 + night, repeats=3, slower=slower.items(), rounds=5)
    if night >= OTHER_TOKENS_AT:
        latency = _other_tokens(latency)
    if night == UNFIT_AT:
        latency = replace(latency, samples=tuple(replace(s, unfit=("a tracer is set",)) for s in latency.samples))
    if night == CARRIED_AT:
        latency = replace(latency, origin=Origin(OriginKind.CARRIED, "bundle of the night before"))
    return evidence(
        f"night {night:02d}",
        night,
        _resources_only(kernels_scope(96 if night >= REGISTERS_AT else 90)),
        latency,
        created=(datetime(2026, 11, 1, 2, tzinfo=UTC) + timedelta(days=night)).isoformat(),
        commit=sha(f"commit of week {night // 4}")[:40],
        environment=ENVIRONMENT,
    )


def _resources_only(scope: ScopeEvidence) -> ScopeEvidence:
    kept: tuple[Metric, ...] = tuple(metric for metric in scope.metrics if metric.name.endswith(" registers"))
    return replace(scope, metrics=kept)


def _other_tokens(scope: ScopeEvidence) -> ScopeEvidence:
    node, other = f"{LATENCY}[greedy-plain]", sha("other tokens")
    samples: tuple[Samples, ...] = tuple(replace(s, token_sha256=other) if s.node == node else s for s in scope.samples)
    tokens = tuple(replace(t, sha256=other) if t.node == node else t for t in scope.tokens)
    return replace(scope, samples=samples, tokens=tokens)


def steady_noise(seed: int, n: int, sigma: float) -> list[float]:
    chance = random.Random(seed)
    return [10 * chance.lognormvariate(0, sigma) for _ in range(n)]
