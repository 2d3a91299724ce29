"""Each rule of the policy at, just below and just above its edge: who is served, and which rule refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.routing import TABLE
from engine.routing.table import first_failing
from suites.routing.axes import check
from suites.routing.edges import Edge
from suites.routing.edges_gates import FAMILIES, LEVEL_0_1, STOPS
from suites.routing.edges_prefill import PREFILL
from suites.routing.edges_rows import DECODE, GROUPED, SMALL_Q

pytestmark = pytest.mark.group("routing: thresholds")

EDGES = [*LEVEL_0_1, *STOPS, *FAMILIES, *SMALL_Q, *GROUPED, *DECODE, *PREFILL]


def _name(value: object) -> str:
    return "+".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _cases() -> Iterator[Any]:
    for edge in EDGES:
        for value in edge.served:
            yield pytest.param(edge, value, id=f"{edge.rule}-{edge.label.replace(' ', '_')}-{_name(value)}")


@pytest.mark.parametrize(("edge", "value"), list(_cases()))
def test_edge(edge: Edge, value: Any) -> None:
    """The route is taken exactly where the rule says, and where it is not, this rule is the reason."""
    decision = check(edge.build(value))
    if edge.served[value]:
        assert decision.route is edge.route, f"{decision.route} instead; {decision.refusals[-1:]}"
        return
    assert decision.route is not edge.route
    row = next(row for row in TABLE if row.route is edge.route)
    reason = first_failing(row, decision.request)
    assert reason is not None, f"{edge.route} would serve {decision.request}, were it asked before {decision.route}"
    assert reason.rule == edge.rule, str(reason)


def test_every_rule_has_an_edge() -> None:
    """No rule of the table is without a case that it refuses."""
    shown = {edge.rule for edge in EDGES if not all(edge.served.values())}
    missing = {rule.name for row in TABLE for rule in row.rules} - shown
    assert not missing, f"rules without a refusing case: {sorted(missing)}"
