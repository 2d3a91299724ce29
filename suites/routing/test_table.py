"""The table as a whole: total, unambiguous, every row reachable, every rule able to refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from engine.routing import TABLE, Attention, Phase, Platform, Route, RouteRequest, Workspace
from engine.routing.table import GATES, first_failing
from suites.recording import Record
from suites.routing.axes import call, check, with_overrides
from suites.routing.known import KNOWN

pytestmark = pytest.mark.group("routing: table")


def test_routes_stand_once() -> None:
    """A route has one row, and every route has one."""
    counted = Counter(row.route for row in TABLE)
    assert counted == dict.fromkeys(Route, 1)


def test_a_rule_has_one_meaning() -> None:
    """Two rules of one name would make a refusal ambiguous."""
    rules = {id(rule): rule for row in TABLE for rule in row.rules}
    counted = Counter(rule.name for rule in rules.values())
    assert max(counted.values()) == 1, [name for name, times in counted.items() if times > 1]


@pytest.mark.parametrize("route", Route, ids=str)
def test_reachable(route: Route) -> None:
    """Each row is the answer to its own plain request, and the refusals are the rows before it."""
    decision = check(KNOWN[route])
    assert decision.route is route
    assert [refusal.route for refusal in decision.refusals] == [row.route for row in TABLE][: len(decision.refusals)]


# ---- exhaustively, over finite lattices -----------------------------------------------------------------------------

Lattice = dict[str, tuple[Any, ...]]

DECODE: Lattice = {
    "kv_len": (4096, 16383, 16384, 32768),
    "kv_dtype": ("auto", "fp8_e5m2", "fp8_e4m3"),
    "q_heads": (4, 6, 8),
    "head_dim": (128, 256),
    "num_seqs": (1, 16, 17),
    "page_size": (16, 784),
    "window": ((-1, -1), (2047, -1)),
    "capturing": (False, True),
    "static_hint": (None, 16384),
    "e4m3_batch_xqa": (False, True),
}
VERIFY: Lattice = {
    "q_len": (2, 8, 9, 17),
    "kv_len": (17, 4096, 16384),
    "kv_dtype": ("auto", "fp8_e5m2", "fp8_e4m3"),
    "heads": ((6, 1), (12, 2)),
    "num_seqs": (1, 2),
    "max_model_len": (32767, 32768),
    "grouped_max_q": (8, 16),
    "capturing": (False, True),
    "causal": (False, True),
    "partition_hint": (None, 256),
}
PREFILL: Lattice = {
    "q_len": (31, 1024, 4096, 8000),
    "kv_len": (8000, 8192, 8224, 32768, 64000),
    "kv_dtype": ("auto", "fp8_e5m2", "fp8_e4m3"),
    "heads": ((6, 1), (4, 1)),
    "num_seqs": (1, 2),
    "causal": (False, True),
    "capturing": (False, True),
    "out_of_memory": ((), (Workspace.GATHER,), (Workspace.GQA, Workspace.SPLIT_KV), (Workspace.BRIDGE,)),
}
GATE: Lattice = {
    "platform": ((Platform.CUDA, (7, 0)), (Platform.CUDA, (7, 5)), (Platform.CUDA, None), (Platform.CPU, None)),
    "backend": (False, True),
    "allow_fallback": (False, True),
    "draft": (False, True),
    "alibi": (False, True),
    "kv_dtype": ("auto", "int8"),
    "paged": (False, True),
    "stride_elements": (4, 8),
    "phase": (("profile", 1), ("decode", 1), ("verify", 8), ("prefill", 64)),
    "capturing": (False, True),
    "persistent_rows": (False, True),
}


def points(lattice: Lattice, phase: str) -> Iterator[RouteRequest]:
    """Every legal request of a lattice."""
    for values in product(*lattice.values()):
        axes = dict(zip(lattice, values, strict=True))
        if "platform" in axes:
            axes["platform"], axes["capability"] = axes["platform"]
        if "heads" in axes:
            axes["q_heads"], axes["kv_heads"] = axes.pop("heads")
        kind, q_len = axes.pop("phase", (phase, axes.pop("q_len", 1)))
        kv_len = axes.pop("kv_len", 4096)
        if kv_len >= q_len:
            yield call(kind, q_len, kv_len, **axes)


def family(route: Route) -> str:
    """Rows of different families must never both admit a request: order decides inside a family alone."""
    if route in (Route.PLATFORM_DEFAULT, Route.DECLARED_FALLBACK, Route.PROFILE_ZERO, Route.DIAGNOSTIC_REFERENCE):
        return str(route)
    if route in (Route.DECODE_XQA, Route.DECODE_SCALAR):
        return "decode"
    if route in (Route.PREFILL_DENSE, Route.PREFILL_DENSE_EXACT):
        return "dense"
    return "cached rows"


@pytest.mark.parametrize(
    ("lattice", "phase"),
    [
        pytest.param(DECODE, "decode", id="decode"),
        pytest.param(VERIFY, "verify", id="verify"),
        pytest.param(PREFILL, "prefill", id="prefill"),
        pytest.param(GATE, "", id="gates"),
    ],
)
def test_total_and_unambiguous(lattice: Lattice, phase: str, record: Record) -> None:
    """Every request has a route or a reason, the oracle agrees, and only one family of rows admits it."""
    seen: Counter[str] = Counter()
    for request in points(lattice, phase):
        decision = check(request)
        answers: dict[str, bool] = {}
        admitting = {family(row.route) for row in TABLE if first_failing(row, request, answers) is None}
        if decision.route is None:
            assert decision.refused_by is not None
            assert not admitting
            seen[f"a refusal by {decision.refused_by.rule}"] += 1
            continue
        # The fallback stands last and admits whatever the caller tolerates; no family overlaps with another.
        admitting.discard(str(Route.DECLARED_FALLBACK))
        assert len(admitting) == (decision.route is not Route.DECLARED_FALLBACK), f"{admitting} for {request}"
        seen[str(decision.route)] += 1
    for name, count in sorted(seen.items()):
        record.metric(f"requests to {name}", count, "requests")


# ---- near every route -----------------------------------------------------------------------------------------------

Deviation = Callable[[RouteRequest], RouteRequest]


def _set(**axes: Any) -> Deviation:
    return lambda request: replace(request, **axes)


def _env(**axes: Any) -> Deviation:
    return lambda request: with_overrides(request, **axes)


def _native(**axes: Any) -> Deviation:
    return lambda request: replace(request, native=replace(request.native, **axes))


def _longer(tokens: int) -> Deviation:
    return lambda request: replace(request, kv_len=request.kv_len + tokens, prefix=True)


def _more_rows(rows: int) -> Deviation:
    return lambda request: (
        request
        if request.q_len == 1 or request.q_len + rows > request.kv_len
        else replace(request, q_len=request.q_len + rows, prefix=request.kv_len > request.q_len + rows)
    )


DEVIATIONS: dict[str, Deviation] = {
    "card": _set(capability=(7, 5)),
    "cpu": _set(platform=Platform.CPU, capability=None),
    "backend off": _env(backend=False),
    "fallback": _env(allow_fallback=True),
    "alibi": _set(alibi=True),
    "head dim": _set(head_dim=128),
    "odd head dim": _set(head_dim=80),
    "group 4": _set(q_heads=4, kv_heads=1),
    "group 8": _set(q_heads=8, kv_heads=1),
    "two kv heads": _set(q_heads=12, kv_heads=2),
    "half": _set(kv_dtype="auto"),
    "e5m2": _set(kv_dtype="fp8_e5m2"),
    "e4m3": _set(kv_dtype="fp8_e4m3"),
    "int8": _set(kv_dtype="int8"),
    "not causal": _set(causal=False),
    "window": _set(window=(2047, -1)),
    "two sequences": _set(num_seqs=2, query_rows=0),
    "seventeen": _set(num_seqs=17, query_rows=0),
    "soft cap": _set(softcap=True),
    "sinks": _set(sinks=True),
    "encoder": _set(attention=Attention.ENCODER),
    "padded rows": lambda request: replace(request, query_rows=request.num_seqs * request.q_len + 3),
    "fresh": lambda request: replace(request, kv_len=request.q_len, prefix=False),
    "a few rows": lambda request: (
        request if request.q_len == 1 else replace(request, q_len=31, kv_len=8192, prefix=True)
    ),
    "a chunk of rows": lambda request: (
        request if request.q_len == 1 else replace(request, q_len=4096, kv_len=8128, prefix=True)
    ),
    "a chunk alone": lambda request: (
        request if request.q_len == 1 else replace(request, q_len=8192, kv_len=8192, prefix=True)
    ),
    "prefill": lambda request: request if request.q_len == 1 else replace(request, phase=Phase.PREFILL),
    "one token more": _longer(1),
    "a tile more": _longer(64),
    "a long context": _longer(240000),
    "one row more": _more_rows(1),
    "one row less": _more_rows(-1),
    "a tile of rows": _more_rows(64),
    "page 16": _set(page_size=16),
    "page 784": _set(page_size=784),
    "strides 8": _set(stride_elements=8),
    "strides 4": _set(stride_elements=4),
    "capture": _set(capturing=True),
    "transient rows": _set(persistent_rows=False),
    "static hint": _set(static_hint=32768),
    "capacity": _set(workspace_capacity=1 << 20),
    "short capacity": _set(workspace_capacity=16),
    "stale hint": _set(max_seq_hint=1),
    "model length": _set(max_model_len=8192),
    "partition hint": _set(partition_hint=256),
    "two passes": _set(one_pass=False),
    "missing tokens": _set(missing_tokens=True),
    "strided out": _set(out_contiguous=False),
    "int64 starts": _set(cu_seqlens_int32=False),
    "scale": _set(scale=0.06),
    "old library": _native(grouped_max_q=8, grouped_e4m3=False, xqa_e4m3=False),
    "no dense": _native(dense_exact=False),
    "no library": _native(paged=False),
    "no gather memory": _set(out_of_memory=(Workspace.GATHER, Workspace.BRIDGE)),
    "no split memory": _set(out_of_memory=(Workspace.GQA, Workspace.SPLIT_KV)),
    "no xqa": _env(decode_xqa=False),
    "no grouped": _env(grouped_verify=False),
    "no gqa": _env(gqa_prefill=False),
    "no split": _env(split_kv=False),
    "q8000 split": _env(split_kv_q8000=True),
    "reference": _env(reference_prefill=True),
    "explicit size": _env(partition_size=512),
    "verify": lambda request: request if request.q_len == 1 else replace(request, phase=Phase.VERIFY),
}


@pytest.mark.parametrize("route", Route, ids=str)
def test_near(route: Route, record: Record) -> None:
    """Every pair of deviations from a route's own request: the rules around it, each against the oracle."""
    requests = 0
    for first, second in combinations(DEVIATIONS, 2):
        check(DEVIATIONS[second](DEVIATIONS[first](KNOWN[route])))
        requests += 1
    record.metric("requests", requests, "requests")


def test_gates_come_first() -> None:
    """Whose card, may the layer, must it stop: asked before anything else by every native row."""
    for row in TABLE[:-2]:
        assert row.rules[: len(GATES)] == GATES, row.route
