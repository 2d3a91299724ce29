"""The routing policy as one ordered table, and the walk over it: the first row whose rules all hold is the route.

Every native row asks first whose card it is (level 0), whether the layer may use the backend (level 1) and whether the
call must stop; so a layer that is inadmissible is refused by the same rule in every row, and nothing is taken instead
unless the caller allowed the plain twin.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.routing import kernel_rules as k
from engine.routing import rules as r
from engine.routing.decision import Decision, Refusal, Route
from engine.routing.plan import partition_plan
from engine.routing.request import RouteRequest
from engine.routing.rules import Rule


@dataclass(frozen=True, slots=True)
class Row:
    """One route and what it asks, in order. ``level`` is the published level of the policy."""

    route: Route
    level: str
    rules: tuple[Rule, ...]
    note: str


PLATFORM: tuple[Rule, ...] = (r.BACKEND_ON, r.CAPABILITY)
GATES: tuple[Rule, ...] = (*PLATFORM, *r.LAYER_RULES, *r.STOP_RULES)
_ROWS = (*GATES, r.MANY_ROWS, r.DIAGNOSTIC_OFF)
_SMALLQ = (*_ROWS, *k.SMALLQ_RULES)
_PREFIX = (*_ROWS, r.CACHED_CONTEXT)
_GATHER = (*_PREFIX, *k.GATHER_RULES)
_BRIDGE = (*_PREFIX, *k.BRIDGE_RULES)

TABLE: tuple[Row, ...] = (
    Row(Route.PROFILE_ZERO, "L2", (*GATES, r.PROFILING), "no metadata: a zero output"),
    Row(
        Route.DIAGNOSTIC_REFERENCE,
        "L3a",
        (*GATES, r.MANY_ROWS, r.DIAGNOSTIC_ASKED, r.HOST_READS),
        "the plain twin, because the caller asked for it",
    ),
    Row(
        Route.GROUPED_VERIFY,
        "L4",
        (*_SMALLQ, *k.GROUPED_RULES),
        "all rows of one request in one tile; the request's own block table",
    ),
    Row(Route.SMALLQ_XQA, "L4", (*_SMALLQ, *k.SMALLQ_XQA_RULES), "rows as decode sequences, one block a KV head"),
    Row(Route.SMALLQ_SCALAR, "L4", _SMALLQ, "rows as decode sequences, one block a query head"),
    Row(
        Route.PREFILL_GATHER_GQA,
        "L3c",
        (*_GATHER, *k.GQA_RULES),
        "pages gathered into dense keys; one KV head serves its 6 query heads together",
    ),
    Row(
        Route.PREFILL_GATHER_SPLIT_KV,
        "L3c",
        (*_GATHER, *k.SPLIT_KV_RULES),
        "pages gathered into dense keys; three splits with FP32 partials",
    ),
    Row(Route.PREFILL_GATHER_EXACT, "L3c", _GATHER, "pages gathered into dense keys; the exact dense kernel"),
    Row(
        Route.PREFILL_BRIDGE_DENSE,
        "L3c",
        (*_BRIDGE, k.BRIDGE_DENSE_RULE, *k.EXACT_RULES),
        "E5M2 pages expanded to halves, tail rows zeroed; the exact dense kernel",
    ),
    Row(
        Route.PREFILL_BRIDGE_PAGED,
        "L3c",
        _BRIDGE,
        "E5M2 pages expanded to half pages, tail rows zeroed; the paged kernel",
    ),
    Row(Route.PREFILL_PAGED, "L3c", _PREFIX, "the paged kernel on the cache as it is"),
    Row(
        Route.PREFILL_DENSE_EXACT,
        "L3d",
        (*_ROWS, r.FRESH_CONTEXT, *k.EXACT_RULES),
        "keys of this call; the exact dense kernel",
    ),
    Row(Route.PREFILL_DENSE, "L3d", (*_ROWS, r.FRESH_CONTEXT), "keys of this call; the general dense kernel"),
    Row(
        Route.DECODE_XQA,
        "L5",
        (*GATES, r.ONE_ROW, *k.DECODE_XQA_RULES),
        "one block a KV head, its query heads together; partitions reduced in order",
    ),
    Row(
        Route.DECODE_SCALAR,
        "L5",
        (*GATES, r.ONE_ROW),
        "one block a query head; partitions reduced in order",
    ),
    Row(
        Route.PLATFORM_DEFAULT,
        "L0",
        (r.OTHER_PLATFORM, r.HOST_READS),
        "the plain twin: the SM70 backend does not apply to this card or is switched off",
    ),
    Row(
        Route.DECLARED_FALLBACK,
        "L1",
        (*PLATFORM, *r.STOP_RULES, r.HOST_READS, r.FALLBACK_ALLOWED),
        "the plain twin, because the caller allowed it",
    ),
)
"""The whole policy, in the order it is walked."""

_REFUSING = frozenset(rule.name for rule in (*GATES, r.HOST_READS))


def first_failing(row: Row, request: RouteRequest, answers: dict[str, bool] | None = None) -> Refusal | None:
    """The refusal of one row, or ``None`` where all its rules hold. ``answers`` keeps what rules said of a request."""
    answers = {} if answers is None else answers
    for rule in row.rules:
        holds = answers.get(rule.name)
        if holds is None:
            holds = answers[rule.name] = rule.holds(request)
        if not holds:
            return Refusal(
                row.route, rule.name, rule.seen(request), rule.allowed_under(request.overrides), rule.override
            )
    return None


def decide(request: RouteRequest, table: tuple[Row, ...] = TABLE) -> Decision:
    """The route of a request, its partition plan, why each earlier row was refused. A legal request never raises."""
    refusals: list[Refusal] = []
    answers: dict[str, bool] = {}
    for row in table:
        refusal = first_failing(row, request, answers)
        if refusal is None:
            warnings: tuple[str, ...] = ()
            if row.route is Route.DECLARED_FALLBACK:
                cause = next(item for item in refusals if item.rule in _REFUSING)
                warnings = (f"attention runs on the plain twin, because {cause.rule} saw {cause.seen}",)
            return Decision(request, row.route, partition_plan(request, row.route), tuple(refusals), warnings=warnings)
        refusals.append(refusal)
    cause = next(item for item in refusals if item.rule in _REFUSING)
    return Decision(request, None, None, tuple(refusals), refused_by=cause)
