"""No silent fallback: an inadmissible layer raises, says why, and says what would allow it; and that works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.routing import Attention, Platform, Route, RouteRefused, RouteRequest, Workspace, decide, read_overrides
from engine.routing.overrides import VARIABLES
from suites.routing.axes import call, check, with_overrides

pytestmark = pytest.mark.group("routing: refusals")

FALLBACK = "VLLM_FLASH_V100_ALLOW_TRITON_FALLBACK"
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "encoder": ("layer.attention", {"attention": Attention.ENCODER}),
    "cross": ("layer.attention", {"attention": Attention.CROSS}),
    "alibi": ("layer.alibi", {"alibi": True}),
    "softcap": ("layer.softcap", {"softcap": True}),
    "sinks": ("layer.sinks", {"sinks": True}),
    "int8": ("layer.kv_dtype", {"kv_dtype": "int8"}),
    "head_dim_80": ("layer.head_dim", {"head_dim": 80}),
    "no_library": ("layer.native", {"paged": False}),
    "strides_1": ("layer.strides", {"stride_elements": 1}),
}
CALLS: dict[str, tuple[str, int, int]] = {
    "profile": ("profile", 1, 1),
    "decode": ("decode", 1, 4096),
    "verify": ("verify", 8, 4096),
    "prefill": ("prefill", 4096, 8192),
    "fresh": ("prefill", 512, 512),
}


def _request(layer: str, kind: str, **axes: Any) -> RouteRequest:
    phase, q_len, kv_len = CALLS[kind]
    return call(phase, q_len, kv_len, **LAYERS[layer][1], **axes)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("layer", LAYERS)
def test_an_inadmissible_layer_raises(layer: str, kind: str) -> None:
    """In every phase the same rule is named first, with the variable that would allow the plain twin."""
    decision = check(_request(layer, kind))
    assert decision.route is None
    with pytest.raises(RouteRefused) as raised:
        decision.require()
    assert LAYERS[layer][0] in str(raised.value)
    assert FALLBACK in str(raised.value)
    assert raised.value.decision is decision
    assert decision.plan is None


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_named_override_allows_it_aloud(layer: str, kind: str) -> None:
    """Following the message leads to the plain twin, and the decision says so."""
    request = replace(_request(layer, kind), overrides=read_overrides({FALLBACK: "1"}))
    decision = check(request)
    assert decision.require() is Route.DECLARED_FALLBACK
    assert LAYERS[layer][0] in decision.warnings[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_draft_layer_falls_back_with_a_warning(layer: str) -> None:
    decision = check(_request(layer, "decode", draft=True))
    assert decision.require() is Route.DECLARED_FALLBACK
    assert len(decision.warnings) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_no_fallback_is_captured(layer: str) -> None:
    """The plain twin reads lengths on the host: in a graph it would replay yesterday's."""
    assert check(_request(layer, "decode", allow_fallback=True, capturing=True)).route is None


def test_the_first_failing_rule_is_the_one_named() -> None:
    """Several things wrong: the first in the table's order is told, which is the order they are worth mending in."""
    request = call("decode", 1, 4096, alibi=True, sinks=True, head_dim=80, attention=Attention.ENCODER)
    decision = decide(request)
    assert decision.refused_by is not None
    assert decision.refused_by.rule == "layer.attention"


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
@pytest.mark.parametrize(
    ("rule", "axes"),
    [
        pytest.param("capacity.hint", {"max_seq_hint": 100}, id="hint"),
        pytest.param("capacity.workspace", {"workspace_capacity": 100}, id="workspace"),
        pytest.param("capture.persistent_rows", {"capturing": True, "persistent_rows": False}, id="rows"),
    ],
)
def test_a_stop_has_no_fallback(rule: str, axes: dict[str, Any], allowed: bool) -> None:
    """What would truncate a sequence or freeze a graph is not made right by another kernel."""
    decision = check(call("verify", 8, 4096, allow_fallback=allowed, **axes))
    assert decision.refused_by is not None
    assert decision.refused_by.rule == rule


@pytest.mark.parametrize(
    ("text", "request_axes"),
    [
        ("q = 8", {"q_len": 7}),
        ("q = 8", {"q_len": 16}),
        ("q = 8", {"q_len": 8, "one_pass": False}),
        ("aligned KV strides", {"q_len": 8, "stride_elements": 8}),
        ("rebuild", {"q_len": 8, "grouped_e4m3": False}),
        ("rebuild", {"q_len": 8, "grouped_max_q": 7}),
    ],
    ids=["q_7", "q_16", "two_passes", "strides", "e5m2_library", "q7_library"],
)
def test_grouped_verify_of_e4m3_says_what_it_needs(text: str, request_axes: dict[str, Any]) -> None:
    """Exactly 8 rows, one pass, 16-byte strides, a library that has it: else the named refusal, then small q."""
    axes = dict(request_axes)
    decision = check(call("verify", axes.pop("q_len"), 1032, kv_dtype="fp8_e4m3", **axes))
    refusal = next(item for item in decision.refusals if item.route is Route.GROUPED_VERIFY)
    assert text in str(refusal)
    assert decision.route is Route.SMALLQ_SCALAR


@pytest.mark.parametrize("workspace", Workspace, ids=str)
def test_out_of_memory_moves_on_and_says_so(workspace: Workspace) -> None:
    """A workspace that does not fit refuses its own route alone; the reason names it."""
    owner = {
        Workspace.GATHER: (Route.PREFILL_GATHER_EXACT, call("prefill", 4096, 8192)),
        Workspace.GQA: (Route.PREFILL_GATHER_GQA, call("prefill", 8000, 16000)),
        Workspace.SPLIT_KV: (Route.PREFILL_GATHER_SPLIT_KV, call("prefill", 4096, 65536)),
        Workspace.BRIDGE: (Route.PREFILL_BRIDGE_DENSE, call("prefill", 1616, 3232, kv_dtype="fp8_e5m2")),
    }
    route, request = owner[workspace]
    assert check(request).route is route
    failed = check(replace(request, out_of_memory=(workspace,)))
    refusal = next(item for item in failed.refusals if item.route is route)
    assert f"out of memory for the {workspace} workspace" in str(refusal)
    wanted = Route.PREFILL_PAGED if workspace in (Workspace.GATHER, Workspace.BRIDGE) else Route.PREFILL_GATHER_EXACT
    assert failed.route is wanted


@pytest.mark.parametrize(
    "request_at_fault",
    [
        pytest.param(call("decode", 1, 4096, backend=False), id="backend"),
        pytest.param(call("decode", 1, 4096, alibi=True), id="fallback"),
        pytest.param(call("decode", 1, 4096, decode_xqa=False), id="decode_xqa"),
        pytest.param(call("verify", 8, 4096, smallq_xqa=False), id="smallq_xqa"),
        pytest.param(call("verify", 8, 4096, kv_dtype="fp8_e5m2", grouped_verify=False), id="grouped_verify"),
        pytest.param(call("prefill", 4096, 8192, gather_dense=False), id="gather_dense"),
        pytest.param(call("prefill", 1024, 1024, exact_dense=False), id="exact_dense"),
        pytest.param(call("prefill", 8000, 16000, gqa_prefill=False), id="gqa_prefill"),
        pytest.param(call("prefill", 4096, 65536, split_kv=False), id="split_kv"),
        pytest.param(call("prefill", 64, 2048, kv_dtype="fp8_e5m2", fp8_bridge=False), id="fp8_bridge"),
        pytest.param(call("decode", 1, 4096, kv_dtype="fp8_e4m3", num_seqs=4), id="e4m3_batch_xqa"),
    ],
)
def test_what_a_refusal_recommends_lifts_it(request_at_fault: RouteRequest) -> None:
    """Wherever a refusal names ``VARIABLE=value``, setting it makes that rule hold."""
    names = {variable.name: variable for variable in VARIABLES}
    followed = 0
    for refusal in decide(request_at_fault).refusals:
        name, equals, value = refusal.override.split(" ")[0].partition("=")
        if not equals or name not in names:
            continue
        lifted = with_overrides(request_at_fault, **{names[name].field: names[name].parse(value)})
        reasons = {item.route: item.rule for item in decide(lifted).refusals}
        if refusal.rule.startswith("layer."):
            assert decide(lifted).route is Route.DECLARED_FALLBACK
        else:
            assert reasons.get(refusal.route) != refusal.rule, str(refusal)
        followed += 1
    assert followed, "no refusal recommended anything"


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ({"q_len": 2}, "one query row"),
        ({"phase": "verify", "q_len": 8, "kv_len": 1}, "capture dummy"),
        ({"phase": "prefill", "q_len": 8, "kv_len": 9, "prefix": False}, "no prefix"),
        ({"q_heads": 7, "kv_heads": 2}, "whole group"),
        ({"window": (-2, -1)}, "-1 means no limit"),
        ({"kv_len": 0}, "at least 1"),
        ({"num_seqs": 4, "query_rows": 3}, "padding only adds rows"),
    ],
    ids=["decode_rows", "short_dummy", "prefix", "heads", "window", "empty", "rows"],
)
def test_a_request_that_contradicts_itself_is_not_built(axes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(**axes)


def test_the_cpu_twin_is_asked_no_capability() -> None:
    assert check(call("decode", 1, 4096, platform=Platform.CPU, capability=None)).route is Route.DECODE_XQA
