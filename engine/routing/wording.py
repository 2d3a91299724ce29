"""Decisions and the policy itself as text: what ``python -m engine route`` and ``routes`` print, and docs hold."""

from __future__ import annotations

from dataclasses import fields

from engine.routing.capture import DFLASH2_WIDTH, MTP_WIDTH, plain_capture_sizes, speculative_capture_sizes
from engine.routing.decision import Decision, Refusal
from engine.routing.kernel_rules import BRIDGE_RULES, EXACT_RULES, GATHER_RULES, SMALLQ_RULES
from engine.routing.kv_dtype import BACKENDS_OTHER, BACKENDS_SM70
from engine.routing.overrides import DEFAULT_OVERRIDES, VARIABLES, Overrides
from engine.routing.plan import SIZE_RULES, sequence_hint
from engine.routing.request import RouteRequest
from engine.routing.rules import STOP_RULES, Rule
from engine.routing.table import GATES, PLATFORM, TABLE, Row

_DEFAULT_REQUEST = RouteRequest()


def explain(decision: Decision) -> list[str]:
    """A decision as lines: the request, the route with its plan, and why each earlier route was refused."""
    request = decision.request
    hint = sequence_hint(request)
    lines = [f"request    {_described(request)}"]
    if decision.refused_by is not None:
        lines.append(f"refused    {decision.refused_by}")
    else:
        row = next(row for row in TABLE if row.route is decision.route)
        lines.append(f"route      {decision.route} ({row.level}): {row.note}")
    if decision.plan is not None:
        plan = decision.plan
        lines.append(
            f"partition  {plan.size} tokens ({plan.reason}): {plan.actual} actual, {plan.launch} launched, "
            f"{plan.workspace} in the workspace"
        )
    lines.append(f"length     {hint.tokens} tokens decide ({hint.source})")
    lines += [f"warning    {warning}" for warning in decision.warnings]
    lines += [f"not        {line}" for line in _grouped(decision.refusals)]
    return lines


def _described(request: RouteRequest) -> str:
    """The axes that differ from the default request, and the ones that always matter."""
    always = ("phase", "kv_dtype", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim")
    shown = []
    for item in fields(request):
        value = getattr(request, item.name)
        if item.name in ("overrides", "native"):
            continue
        if item.name in always or value != getattr(_DEFAULT_REQUEST, item.name):
            shown.append(f"{item.name}={value}")
    for record, default in ((request.native, _DEFAULT_REQUEST.native), (request.overrides, DEFAULT_OVERRIDES)):
        for item in fields(record):
            value = getattr(record, item.name)
            if value != getattr(default, item.name):
                shown.append(f"{item.name}={value}")
    return " ".join(shown)


def _grouped(refusals: tuple[Refusal, ...]) -> list[str]:
    """Refusals with the same reason on one line."""
    routes: dict[str, list[str]] = {}
    for refusal in refusals:
        routes.setdefault(str(refusal), []).append(str(refusal.route))
    return [f"{', '.join(names)}: {reason}" for reason, names in routes.items()]


# ---- the policy as Markdown -----------------------------------------------------------------------------------------


_SETS: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("*gates*", GATES),
    ("*platform*", PLATFORM),
    ("*stops*", STOP_RULES),
    ("*small q*", SMALLQ_RULES),
    ("*gather*", GATHER_RULES),
    ("*exact dense*", EXACT_RULES),
    ("*bridge*", BRIDGE_RULES),
)
"""Rules that several rows ask one after the other, under one name; longer sets before the sets inside them."""


def policy_markdown() -> list[str]:
    """The whole policy: rows, rules, partitions, capture sizes and variables, as Markdown lines."""
    return [
        *_section(
            "Routes, in the order they are asked", ["#", "level", "route and counter", "asks, in order", "serves"]
        ),
        *(_row_line(number, row) for number, row in enumerate(TABLE, start=1)),
        "",
        *_section("Sets of rules that several routes ask", ["set", "rules"]),
        *(_cells([name, ", ".join(_names(rules, _SETS[index + 1 :]))]) for index, (name, rules) in enumerate(_SETS)),
        "",
        *_section("Rules", ["rule", "allowed", "what would allow it"]),
        *(
            _cells([f"`{rule.name}`", rule.allowed_under(DEFAULT_OVERRIDES), rule.override or "-"])
            for rule in _rules_once()
        ),
        "",
        *_section(
            "Partition size of decode and small-q routes: the first that applies", ["when", "condition", "tokens"]
        ),
        *(_cells([rule.name, rule.when, rule.gives]) for rule in SIZE_RULES),
        "",
        *_section(
            "Captured sizes", ["max_num_seqs", "plain", f"MTP, width {MTP_WIDTH}", f"DFlash2, width {DFLASH2_WIDTH}"]
        ),
        *(_capture_line(count) for count in (1, 2, 3, 4, 8, 12, 16, 32, 256)),
        "",
        *_section("Variables, read once at start", ["variable", "allowed", "default"]),
        *(
            _cells([f"`{variable.name}`", variable.allowed, _default(DEFAULT_OVERRIDES, variable.field)])
            for variable in VARIABLES
        ),
        "",
        *_section("Backends a platform offers, in order", ["platform", "backends"]),
        _cells(["CUDA, capability 7.0, switch on", ", ".join(BACKENDS_SM70)]),
        _cells(["anything else", ", ".join(BACKENDS_OTHER)]),
    ]


def _section(title: str, columns: list[str]) -> list[str]:
    return [f"### {title}", "", _cells(columns), "|" + "---|" * len(columns)]


def _cells(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row_line(number: int, row: Row) -> str:
    return _cells([str(number), row.level, f"`{row.route}`", ", ".join(_names(row.rules, _SETS)), row.note])


def _names(rules: tuple[Rule, ...], sets: tuple[tuple[str, tuple[Rule, ...]], ...]) -> list[str]:
    """Names of rules in order; a run that is one of the ``sets`` goes by the name of the set."""
    names: list[str] = []
    position = 0
    while position < len(rules):
        for name, members in sets:
            if rules[position : position + len(members)] == members:
                names.append(name)
                position += len(members)
                break
        else:
            names.append(f"`{rules[position].name}`")
            position += 1
    return names


def _rules_once() -> list[Rule]:
    return list({rule.name: rule for row in TABLE for rule in row.rules}.values())


def _capture_line(count: int) -> str:
    lists = (
        plain_capture_sizes(count),
        speculative_capture_sizes(count, MTP_WIDTH),
        speculative_capture_sizes(count, DFLASH2_WIDTH),
    )
    return _cells([str(count), *(" ".join(map(str, sizes)) for sizes in lists)])


def _default(overrides: Overrides, field: str) -> str:
    value = getattr(overrides, field)
    if value is None:
        return "unset"
    return str(int(value))
