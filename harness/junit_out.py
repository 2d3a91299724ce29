"""A comparison as JUnit XML, so that CI systems that know nothing of us list its rows. Written with junitparser."""

from __future__ import annotations

import importlib
import re
from typing import Any

from harness.model import CaseStatus
from harness.verdict import CaseOutcome, CaseRow, Comparison, MetricOutcome, MetricRow

_BAD_CASES = (CaseOutcome.BROKEN, CaseOutcome.MISSING, CaseOutcome.FLAKY)
_BAD_NUMBERS = (MetricOutcome.WORSE, MetricOutcome.CHANGED, MetricOutcome.MISSING)
_SHOWN_ONLY = (MetricOutcome.UNDECIDED, MetricOutcome.INCOMPARABLE)
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def comparison_junit(comparison: Comparison) -> bytes:
    """One suite per scope; a regression is a failure, what cannot be judged is skipped."""
    junit: Any = importlib.import_module("junitparser")
    root = junit.JUnitXml(name=_clean(f"{comparison.base or 'nothing'} against {comparison.head}"))
    for scope in comparison.scopes:
        suite = junit.TestSuite(_clean(scope.scope))
        for case in (row for row in comparison.cases if row.scope == scope.scope):
            suite.add_testcase(_case(junit, case.node, "outcome", *_of_case(case)))
        for number in (row for row in comparison.metrics if row.scope == scope.scope):
            suite.add_testcase(_case(junit, number.node, number.name, *_of_number(number)))
        root.add_testsuite(suite)
    root.update_statistics()
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + bytes(root.tostring().split(b"?>", 1)[-1].lstrip())


def _of_case(row: CaseRow) -> tuple[str, str]:
    skipped_now = row.outcome is CaseOutcome.SKIPPED and row.base is not None and row.base.green
    if row.outcome in _BAD_CASES or (skipped_now and row.head is CaseStatus.SKIPPED):
        return "Failure", f"{row.outcome}: {row.reason}"
    if row.outcome in (CaseOutcome.SKIPPED, CaseOutcome.QUARANTINED):
        return "Skipped", f"{row.outcome}: {row.reason}"
    return "", ""


def _of_number(row: MetricRow) -> tuple[str, str]:
    said = f"{row.outcome}: base {row.base} head {row.head} {row.unit}; {row.reason}"
    if row.outcome in _BAD_NUMBERS:
        return "Failure", said
    return ("Skipped", said) if row.outcome in _SHOWN_ONLY else ("", "")


def _case(junit: Any, node: str, name: str, result: str, message: str) -> Any:
    case = junit.TestCase(_clean(name), _clean(node))
    if result:
        case.result = [getattr(junit, result)(_clean(message))]
    return case


def _clean(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)
