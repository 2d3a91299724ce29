"""An illegal record cannot be built."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.model import CaseResult, CaseStatus, IllegalRecord, Metric, Origin, OriginKind, Samples, ScopeEvidence
from harness.verdict import CaseOutcome, CaseRow, ExitCode, GateDecision, Interval, MetricOutcome, MetricRow, Quarantine
from tests.harness import build

INTERVAL = Interval(1.0, 1.1, 0.95, "")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CaseResult("", CaseStatus.PASSED), "node id"),
        (lambda: CaseResult("n", CaseStatus.SKIPPED), "must say why"),
        (lambda: CaseResult("n", CaseStatus.PASSED, -1.0), "no duration"),
        (lambda: Metric("n", "m", float("nan"), "1"), "finite"),
        (lambda: Samples("n", "s", (), "ms"), "without a value"),
        (lambda: Samples("n", "s", (1.0,), "ms", control="greedy"), "both a name and a hash"),
        (lambda: Origin(OriginKind.CARRIED), "which bundle"),
        (lambda: Origin(OriginKind.NOT_RUN), "must say why"),
        (
            lambda: ScopeEvidence("s", Origin(OriginKind.NOT_RUN, "why"), cases=(build.case("n"),)),
            "NOT_RUN and yet has 1 cases",
        ),
        (
            lambda: build.scope(build.case("n", CaseStatus.FAILED), samples=(build.samples("n", (1.0,)),)),
            "is failed and yet has a timing",
        ),
        (
            lambda: build.scope(build.case("n", CaseStatus.FLAKY), samples=(build.samples("n", (1.0,)),)),
            "is flaky and yet has a timing",
        ),
        (lambda: build.scope(build.case("n"), build.case("n")), "has 1 cases twice"),
        (lambda: build.evidence(build.scope(), build.scope()), "has a scope twice"),
        (lambda: CaseRow("s", "n", CaseOutcome.MISSING, None, CaseStatus.PASSED), "cannot be MISSING"),
        (lambda: CaseRow("s", "n", CaseOutcome.UNCHANGED, CaseStatus.PASSED, CaseStatus.FAILED), "is not UNCHANGED"),
        (lambda: MetricRow("s", "n", "m", "metric", MetricOutcome.WORSE), "needs both values"),
        (lambda: MetricRow("s", "n", "m", "metric", MetricOutcome.UNDECIDED), "must say why"),
        (
            lambda: MetricRow("s", "n", "m", "samples", MetricOutcome.INCOMPARABLE, interval=INTERVAL, reason="why"),
            "INCOMPARABLE beside an interval",
        ),
        (
            lambda: MetricRow("s", "n", "m", "samples", MetricOutcome.WORSE, base=1.0, head=2.0, unfit=("profiled",)),
            "unfit for timing: profiled",
        ),
        (lambda: GateDecision(ExitCode.REGRESSION, ()), "without a reason"),
        (lambda: Quarantine("n", "", "why", "2026-01-01"), "owner"),
    ],
)
def test_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(IllegalRecord, match=says):
        make()
