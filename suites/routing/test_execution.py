"""Every route run for real: it counts itself once, and gives fp64 attention within the arithmetic's own bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from engine.ops.attention_call import RouteCounters
from engine.ops.attention_routes import run_route
from engine.routing import Route, decide
from engine.routing.plan import partition_plan
from native.bindings import runtime
from suites.kernels import inputs
from suites.oracles import judge
from suites.routing.scene import run_decided, scene
from suites.targets import CPU, Target, array

pytestmark = pytest.mark.group("routing: execution")

E5M2, E4M3 = "fp8_e5m2", "fp8_e4m3"
CHUNK = {"gather_min_q": 1024, "gather_min_kv": 1088}
SHORT = {"smallq_xqa_min_seq": 300}
SCALES = {"k_scale": 0.5, "v_scale": 2.0}  # powers of two: a decoded code times its scale is still exact

# id -> route, phase, query lengths, KV lengths, axes: requests that the policy itself sends down the route.
DECIDED: dict[str, tuple[Route, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "decode_xqa-page784": (Route.DECODE_XQA, "decode", (1,), (1025,), {"page_size": 784}),
    "decode_xqa-batch": (Route.DECODE_XQA, "decode", (1, 1, 1), (300, 17, 1), {}),
    "decode_xqa-g8": (Route.DECODE_XQA, "decode", (1,), (513,), {"q_heads": 16, "kv_heads": 2}),
    "decode_xqa-p64": (Route.DECODE_XQA, "decode", (1,), (1000,), {"partition_size": 64}),
    "decode_xqa-p1024": (Route.DECODE_XQA, "decode", (1,), (3000,), {"partition_size": 1024}),
    "decode_scalar-g4": (Route.DECODE_SCALAR, "decode", (1, 1), (600, 33), {"q_heads": 4}),
    "decode_scalar-d64": (
        Route.DECODE_SCALAR,
        "decode",
        (1,),
        (257,),
        {"q_heads": 9, "kv_heads": 3, "head_dim": 64, "scale": 0.125},
    ),
    "decode_scalar-window": (Route.DECODE_SCALAR, "decode", (1,), (700,), {"window": (255, -1)}),
    "smallq_xqa-q5": (Route.SMALLQ_XQA, "verify", (5,), (400,), SHORT),
    "smallq_xqa-two_requests": (Route.SMALLQ_XQA, "verify", (5, 5), (300, 90), SHORT),
    "smallq_scalar-q8": (Route.SMALLQ_SCALAR, "verify", (8,), (300,), {}),
    "smallq_scalar-ragged": (Route.SMALLQ_SCALAR, "verify", (3, 8, 1), (40, 300, 7), {"q_heads": 8}),
    "smallq_scalar-bucket": (Route.SMALLQ_SCALAR, "verify", (5,), (768,), {"partition_hint": 256}),
    "smallq_scalar-window": (Route.SMALLQ_SCALAR, "verify", (8,), (300,), {"window": (63, -1)}),
    "gather_exact": (Route.PREFILL_GATHER_EXACT, "prefill", (1024,), (1088,), {"page_size": 784, **CHUNK}),
    "paged-two": (Route.PREFILL_PAGED, "prefill", (40, 17), (300, 90), {}),
    "paged-d128": (
        Route.PREFILL_PAGED,
        "prefill",
        (64,),
        (300,),
        {"q_heads": 12, "kv_heads": 2, "head_dim": 128, "page_size": 256, "scale": 1 / math.sqrt(128)},
    ),
    "paged-draft_block": (
        Route.PREFILL_PAGED,
        "verify",
        (8,),
        (300,),
        {"causal": False, "window": (63, 63), "q_heads": 8, "kv_heads": 2, "head_dim": 128},
    ),
    "paged-left_window_both_ways": (
        Route.PREFILL_PAGED,
        "verify",
        (8,),
        (60,),
        {"causal": False, "window": (2, -1), "q_heads": 8, "kv_heads": 2, "head_dim": 128},
    ),
    "diagnostic-left_window_both_ways": (
        Route.DIAGNOSTIC_REFERENCE,
        "verify",
        (8,),
        (60,),
        {"causal": False, "window": (2, -1), "reference_prefill": True},
    ),
    "paged-windowed": (Route.PREFILL_PAGED, "prefill", (40,), (200,), {"window": (31, 0)}),
    "dense_exact": (Route.PREFILL_DENSE_EXACT, "prefill", (1024,), (1024,), {}),
    "dense_exact-ragged": (Route.PREFILL_DENSE_EXACT, "prefill", (33, 1024), (33, 1024), {}),
    "dense-ragged": (Route.PREFILL_DENSE, "prefill", (5, 64, 33), (5, 64, 33), {}),
    "dense-d64": (
        Route.PREFILL_DENSE,
        "prefill",
        (300,),
        (300,),
        {"q_heads": 9, "kv_heads": 3, "head_dim": 64, "scale": 0.125},
    ),
    "decode_xqa-e4m3": (Route.DECODE_XQA, "decode", (1,), (1025,), {"kv_dtype": E4M3, "page_size": 1648, **SCALES}),
    "decode_xqa-e5m2": (
        Route.DECODE_XQA,
        "decode",
        (1,),
        (600,),
        {"kv_dtype": E5M2, "page_size": 1616, "fp8_xqa_min_seq": 500},
    ),
    "decode_scalar-e5m2": (Route.DECODE_SCALAR, "decode", (1, 1), (300, 17), {"kv_dtype": E5M2, **SCALES}),
    "decode_scalar-e4m3": (Route.DECODE_SCALAR, "decode", (1,), (300,), {"kv_dtype": "fp8", "q_heads": 8}),
    "smallq_xqa-mtp5": (
        Route.SMALLQ_XQA,
        "verify",
        (5,),
        (600,),
        {"kv_dtype": E5M2, "page_size": 1616, "grouped_verify": False, "fp8_xqa_min_seq": 500, **SHORT},
    ),
    "grouped_verify-e4m3": (
        Route.GROUPED_VERIFY,
        "verify",
        (8,),
        (1032,),
        {"kv_dtype": E4M3, "page_size": 1648, **SCALES},
    ),
    "grouped_verify-e4m3-page16": (Route.GROUPED_VERIFY, "verify", (8,), (300,), {"kv_dtype": E4M3}),
    "grouped_verify-e5m2-q16": (Route.GROUPED_VERIFY, "verify", (16,), (300,), {"kv_dtype": E5M2, "page_size": 3296}),
    "grouped_verify-two_passes": (
        Route.GROUPED_VERIFY,
        "verify",
        (5,),
        (300,),
        {"kv_dtype": E5M2, "page_size": 1648, "one_pass": False},
    ),
    "smallq_scalar-e4m3-q7": (Route.SMALLQ_SCALAR, "verify", (7,), (300,), {"kv_dtype": E4M3, **SCALES}),
    "bridge_paged": (Route.PREFILL_BRIDGE_PAGED, "prefill", (40,), (1001,), {"kv_dtype": E5M2, "page_size": 1616}),
    "bridge_paged-exact_tail": (Route.PREFILL_BRIDGE_PAGED, "prefill", (32,), (64,), {"kv_dtype": E5M2}),
    "bridge_dense": (Route.PREFILL_BRIDGE_DENSE, "prefill", (1024,), (1056,), {"kv_dtype": E5M2, "page_size": 1616}),
    "paged-e4m3": (Route.PREFILL_PAGED, "prefill", (40,), (300,), {"kv_dtype": E4M3, **SCALES}),
    "diagnostic-e5m2": (
        Route.DIAGNOSTIC_REFERENCE,
        "prefill",
        (40,),
        (300,),
        {"reference_prefill": True, "kv_dtype": E5M2, **SCALES},
    ),
    "diagnostic": (Route.DIAGNOSTIC_REFERENCE, "prefill", (40,), (300,), {"reference_prefill": True}),
    "platform_default": (Route.PLATFORM_DEFAULT, "decode", (1, 1), (300, 17), {"backend": False}),
    "declared_fallback": (
        Route.DECLARED_FALLBACK,
        "verify",
        (8,),
        (90,),
        {"head_dim": 80, "q_heads": 4, "allow_fallback": True, "scale": 0.1},
    ),
}


@pytest.mark.parametrize("name", DECIDED)
def test_decided(name: str, targets: tuple[Target, ...]) -> None:
    """Decide, run, count: one counter moves by one, the output is written whole and right."""
    route, phase, queries, lengths, axes = DECIDED[name]
    for target in targets:
        made = scene(target, phase, queries, lengths, **axes)
        assert decide(made.request).route is route
        out, counters = run_decided(made)
        assert counters.by_name() == {str(route): 1}
        assert out is made.call.out
        made.check(out, name)


# Routes whose own shapes are too large for a CPU: the same work on small shapes, whatever the policy says of those.
SMALL: dict[str, tuple[Route, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "gather_gqa": (Route.PREFILL_GATHER_GQA, (64,), (640,), {"page_size": 784}),
    "gather_split_kv": (Route.PREFILL_GATHER_SPLIT_KV, (64,), (704,), {"page_size": 48}),
    "gather_exact": (Route.PREFILL_GATHER_EXACT, (64,), (640,), {"page_size": 16}),
    "grouped_verify": (Route.GROUPED_VERIFY, (8,), (1032,), {"page_size": 1648}),
}


@pytest.mark.parametrize("name", SMALL)
def test_small(name: str, targets: tuple[Target, ...]) -> None:
    route, queries, lengths, axes = SMALL[name]
    for target in targets:
        made = scene(target, "verify", queries, lengths, **axes)
        counters = RouteCounters()
        out = run_route(route, partition_plan(made.request, route), made.request, made.call, counters)
        assert counters.by_name() == {str(route): 1}
        made.check(out, name)


# Requests at the size that the policy demands: seconds on a GPU, minutes on a CPU.
FULL_SIZE: dict[str, tuple[Route, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "gather_gqa": (Route.PREFILL_GATHER_GQA, "prefill", (8000,), (16000,), {"page_size": 784}),
    "gather_split_kv": (Route.PREFILL_GATHER_SPLIT_KV, "prefill", (4096,), (32768,), {"page_size": 784}),
    "gather_exact": (Route.PREFILL_GATHER_EXACT, "prefill", (4096,), (8192,), {"page_size": 784}),
    "smallq_xqa-e5m2": (
        Route.SMALLQ_XQA,
        "verify",
        (5,),
        (16384,),
        {"kv_dtype": E5M2, "page_size": 1616, "grouped_verify": False},
    ),
    "decode_xqa-g4": (Route.DECODE_XQA, "decode", (1,), (32769,), {"q_heads": 4, "page_size": 784}),
    "decode_xqa-e5m2": (Route.DECODE_XQA, "decode", (1,), (16384,), {"kv_dtype": E5M2, "page_size": 1616}),
    "grouped_verify-e4m3": (
        Route.GROUPED_VERIFY,
        "verify",
        (8,),
        (32768,),
        {"kv_dtype": E4M3, "page_size": 3296, **SCALES},
    ),
}


@pytest.mark.parametrize("name", FULL_SIZE)
def test_at_full_size(name: str, gpu: Target) -> None:
    route, phase, queries, lengths, axes = FULL_SIZE[name]
    made = scene(gpu, phase, queries, lengths, **axes)
    assert decide(made.request).route is route
    out, counters = run_decided(made)
    assert counters.by_name() == {str(route): 1}
    made.check(out, name)


def test_profiling_writes_zeros(targets: tuple[Target, ...]) -> None:
    for target in targets:
        made = scene(target, "profile", (1,), (1,))
        out, counters = run_decided(made)
        assert counters[Route.PROFILE_ZERO] == 1
        assert not out.any()


def test_every_route_isrun_decided() -> None:
    """No route without a case in this file."""
    run = {case[0] for case in DECIDED.values()} | {case[0] for case in SMALL.values()} | {Route.PROFILE_ZERO}
    assert run == set(Route)


# ---- the same call down many routes ---------------------------------------------------------------------------------

ONE_SEQUENCE = (
    Route.SMALLQ_XQA,
    Route.SMALLQ_SCALAR,
    Route.GROUPED_VERIFY,
    Route.PREFILL_GATHER_GQA,
    Route.PREFILL_GATHER_SPLIT_KV,
    Route.PREFILL_GATHER_EXACT,
    Route.PREFILL_PAGED,
    Route.DECLARED_FALLBACK,
)


@pytest.mark.parametrize("length", [8, 256, 523])
def test_routes_agree(length: int, targets: tuple[Target, ...]) -> None:
    """One verification down eight routes: each within the bound of the same oracle."""
    for target in targets:
        for route in ONE_SEQUENCE:
            made = scene(target, "verify", (8,), (length,), page_size=48, missing_tokens=True)
            plan = partition_plan(made.request, route)
            made.check(run_route(route, plan, made.request, made.call, RouteCounters()), f"{route} at {length}")


FP8_SEQUENCE = (*ONE_SEQUENCE[:3], Route.PREFILL_BRIDGE_DENSE, Route.PREFILL_BRIDGE_PAGED, *ONE_SEQUENCE[6:])


@pytest.mark.parametrize("kv_dtype", [E5M2, E4M3])
def test_routes_agree_on_fp8(kv_dtype: str, targets: tuple[Target, ...]) -> None:
    """Read as codes or expanded to halves first: the same numbers, so the same bound."""
    for target in targets:
        for route in FP8_SEQUENCE:
            made = scene(target, "verify", (8,), (300,), kv_dtype=kv_dtype, page_size=48, **SCALES)
            plan = partition_plan(made.request, route)
            out = run_route(route, plan, made.request, made.call, RouteCounters())
            made.check(out, f"{route} on {kv_dtype}")


@pytest.mark.parametrize("size", [64, 256, 1024])
def test_heads_together_or_apart_give_the_same_bits(size: int, targets: tuple[Target, ...]) -> None:
    """XQA and scalar rows differ in who shares a pass over the keys, not in any product or sum."""
    for target in targets:
        outputs = []
        for route in (Route.DECODE_XQA, Route.DECODE_SCALAR):
            made = scene(target, "decode", (1, 1), (1300, 40), partition_size=size)
            outputs.append(
                array(run_route(route, partition_plan(made.request, route), made.request, made.call, RouteCounters()))
            )
        judge.assert_bits_equal(outputs[0], outputs[1], f"{target.name} {size}")


def test_a_verified_row_has_the_bits_of_the_decoded_one(targets: tuple[Target, ...]) -> None:
    """Speculation must not change a token: row i of a small-q call is the decode that stops there."""
    for target in targets:
        made = scene(target, "verify", (5,), (300,))
        together = array(
            run_route(
                Route.SMALLQ_SCALAR,
                partition_plan(made.request, Route.SMALLQ_SCALAR),
                made.request,
                made.call,
                RouteCounters(),
            )
        )
        for row in range(5):
            alone = replace(
                made.call,
                q=made.call.q[row : row + 1].contiguous(),
                seq_lens=made.call.seq_lens - (4 - row),
                query_start=inputs.query_start(target, (1,)),
                query_lens=(1,),
                lengths=(300 - (4 - row),),
                out=None,
            )
            plan = partition_plan(made.request, Route.DECODE_SCALAR)
            single = run_route(Route.DECODE_SCALAR, plan, made.request, alone, RouteCounters())
            judge.assert_bits_equal(array(single)[0], together[row], f"{target.name} row {row}")


def test_where_the_cut_is_made_shows_only_in_rounding(targets: tuple[Target, ...]) -> None:
    """Another partition size is another order of additions: other bits, the same bound."""
    for target in targets:
        outputs = set()
        for size in (64, 128, 512):
            made = scene(target, "decode", (1,), (1300,), partition_size=size)
            out, _ = run_decided(made)
            made.check(out, f"partition {size}")
            outputs.add(array(out).tobytes())
        assert len(outputs) > 1, "the size of a partition changed nothing: is it used at all?"


def test_thread_counts_give_the_same_bits(native_library: str) -> None:
    before = runtime.threads()
    try:
        outputs = []
        for threads in (1, 2, 3):
            runtime.set_threads(threads)
            made = scene(CPU, "decode", (1,), (3000,), partition_size=1024)
            outputs.append(array(run_decided(made)[0]))
        for other in outputs[1:]:
            judge.assert_bits_equal(other, outputs[0], "threads")
    finally:
        runtime.set_threads(before)
