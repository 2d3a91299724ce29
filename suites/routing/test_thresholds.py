"""Each rule of the policy at, just below and just above its edge: who is served, and which rule refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from engine.routing import TABLE, Attention, Platform, Route, RouteRequest, Workspace
from engine.routing.table import first_failing
from suites.routing.axes import call, check

pytestmark = pytest.mark.group("routing: thresholds")

E5M2, E4M3 = "fp8_e5m2", "fp8_e4m3"


@dataclass(frozen=True, slots=True)
class Edge:
    """``served``: for each value of an axis, whether ``route`` serves ``build(value)``; if not, ``rule`` says why."""

    rule: str
    label: str
    route: Route
    build: Callable[[Any], RouteRequest]
    served: dict[Any, bool]


def decode(**axes: Any) -> RouteRequest:
    return call("decode", 1, axes.pop("kv_len", 4096), **axes)


def verify(**axes: Any) -> RouteRequest:
    return call("verify", axes.pop("q_len", 8), axes.pop("kv_len", 4096), **axes)


def prefill(**axes: Any) -> RouteRequest:
    return call("prefill", axes.pop("q_len", 512), axes.pop("kv_len", 2048), **axes)


def grouped(**axes: Any) -> RouteRequest:
    return verify(**({"kv_dtype": E5M2} | axes))


def smallq(**axes: Any) -> RouteRequest:
    return verify(**({"grouped_verify": False} | axes))


def gather(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 4096, "kv_len": 8192} | axes))


def gqa(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 8000, "kv_len": 16000} | axes))


def split(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 4096, "kv_len": 32768} | axes))


def bridge(**axes: Any) -> RouteRequest:
    return prefill(**({"kv_dtype": E5M2} | axes))


def fresh(q_len: int = 1024, **axes: Any) -> RouteRequest:
    return prefill(q_len=q_len, kv_len=q_len, **axes)


R = Route
ON_OFF = {True: True, False: False}
OFF_ON = {False: True, True: False}


def axis(build: Callable[..., RouteRequest], name: str, **fixed: Any) -> Callable[[Any], RouteRequest]:
    """Vary one axis of a kind of request."""
    return lambda value: build(**{**fixed, name: value})


def _platform(value: str) -> RouteRequest:
    if value == "cpu":
        return decode(platform=Platform.CPU, capability=None)
    return decode(capability=None if value == "unasked" else (int(value[0]), int(value[2])))


LEVEL_0_1 = [
    Edge("platform.backend", "switch", R.DECODE_XQA, axis(decode, "backend"), ON_OFF),
    Edge(
        "platform.capability",
        "card",
        R.DECODE_XQA,
        _platform,
        {"6.1": False, "7.0": True, "7.2": False, "7.5": False, "9.0": False, "unasked": False, "cpu": True},
    ),
    Edge("platform.other", "card", R.PLATFORM_DEFAULT, axis(decode, "backend"), OFF_ON),
    Edge(
        "layer.attention",
        "kind",
        R.DECODE_XQA,
        axis(decode, "attention"),
        {Attention.DECODER: True, Attention.ENCODER: False, Attention.CROSS: False},
    ),
    Edge("layer.alibi", "slopes", R.DECODE_XQA, axis(decode, "alibi"), OFF_ON),
    Edge("layer.softcap", "cap", R.DECODE_XQA, axis(decode, "softcap"), OFF_ON),
    Edge("layer.sinks", "sinks", R.DECODE_XQA, axis(decode, "sinks"), OFF_ON),
    Edge(
        "layer.kv_dtype",
        "name",
        R.DECODE_SCALAR,
        axis(decode, "kv_dtype", decode_xqa=False),
        dict.fromkeys(("auto", "float16", "bfloat16", "float32", "fp8", E4M3, E5M2), True)
        | dict.fromkeys(("int8", "nvfp4", "fp8_e3m4", ""), False),
    ),
    Edge(
        "layer.head_dim",
        "D",
        R.PREFILL_PAGED,
        axis(prefill, "head_dim"),
        {
            63: False,
            64: True,
            80: False,
            96: False,
            127: False,
            128: True,
            192: False,
            255: False,
            256: True,
            512: False,
        },
    ),
    Edge("layer.native", "library", R.DECODE_XQA, axis(decode, "paged"), ON_OFF),
    Edge(
        "layer.strides",
        "elements",
        R.DECODE_XQA,
        axis(decode, "stride_elements"),
        {1: False, 4: False, 8: True, 16: True, 256: True},
    ),
    Edge("fallback.allowed", "variable", R.DECLARED_FALLBACK, axis(decode, "allow_fallback", alibi=True), ON_OFF),
    Edge("fallback.allowed", "draft layer", R.DECLARED_FALLBACK, axis(decode, "draft", alibi=True), ON_OFF),
]
STOPS = [
    Edge(
        "capture.persistent_rows",
        "rows",
        R.SMALLQ_SCALAR,
        axis(smallq, "persistent_rows", capturing=True, kv_len=8),
        ON_OFF,
    ),
    Edge(
        "capture.persistent_rows",
        "q of a transient capture",
        R.PREFILL_PAGED,
        axis(smallq, "q_len", capturing=True, persistent_rows=False, smallq_max_q=8),
        {8: False, 9: True},
    ),
    Edge("capacity.hint", "hint", R.DECODE_XQA, axis(decode, "max_seq_hint"), {4095: False, 4096: True, 4097: True}),
    Edge(
        "capacity.workspace",
        "eager",
        R.DECODE_XQA,
        axis(decode, "workspace_capacity"),
        {4095: False, 4096: True, 4097: True},
    ),
    Edge(
        "capacity.workspace",
        "captured",
        R.DECODE_XQA,
        axis(decode, "workspace_capacity", kv_len=1, capturing=True, static_hint=32768),
        {32767: False, 32768: True, 32769: True},
    ),
    Edge(
        "capture.host_reads", "fallback", R.DECLARED_FALLBACK, axis(decode, "capturing", sinks=True, draft=True), OFF_ON
    ),
    Edge("capture.host_reads", "other card", R.PLATFORM_DEFAULT, axis(decode, "capturing", backend=False), OFF_ON),
    Edge(
        "capture.host_reads",
        "diagnostic",
        R.DIAGNOSTIC_REFERENCE,
        axis(prefill, "capturing", reference_prefill=True),
        OFF_ON,
    ),
]
FAMILIES = [
    Edge(
        "phase.profile",
        "phase",
        R.PROFILE_ZERO,
        lambda phase: call(phase, 1, 1),
        {"profile": True, "decode": False, "prefill": False, "verify": False},
    ),
    Edge("phase.one_row", "q", R.DECODE_XQA, lambda q: call("verify", q, 4096), {1: True, 2: False}),
    Edge("phase.many_rows", "q", R.PREFILL_PAGED, lambda q: prefill(q_len=q, causal=False), {1: False, 2: True}),
    Edge("diagnostic.asked", "switch", R.DIAGNOSTIC_REFERENCE, axis(prefill, "reference_prefill"), ON_OFF),
    Edge("diagnostic.off", "switch", R.PREFILL_PAGED, axis(prefill, "reference_prefill"), OFF_ON),
    Edge("prefix.context", "kv", R.PREFILL_PAGED, axis(prefill, "kv_len", q_len=17), {17: False, 18: True}),
    Edge("prefix.context", "missing tokens", R.PREFILL_PAGED, axis(fresh, "missing_tokens"), ON_OFF),
    Edge("prefix.none", "kv", R.PREFILL_DENSE, axis(prefill, "kv_len", q_len=17), {17: True, 18: False}),
    Edge("prefix.none", "missing tokens", R.PREFILL_DENSE, axis(fresh, "missing_tokens", q_len=64), OFF_ON),
]
SMALL_Q = [
    Edge("smallq.length", "q", R.SMALLQ_SCALAR, axis(prefill, "q_len"), {2: True, 15: True, 16: True, 17: False}),
    Edge(
        "smallq.length",
        "q under an override",
        R.SMALLQ_SCALAR,
        axis(prefill, "q_len", smallq_max_q=4),
        {3: True, 4: True, 5: False},
    ),
    Edge("smallq.context", "kv", R.SMALLQ_SCALAR, axis(smallq, "kv_len", q_len=8), {8: False, 9: True}),
    Edge("smallq.context", "capture", R.SMALLQ_SCALAR, axis(smallq, "capturing", kv_len=8), ON_OFF),
    Edge("smallq.context", "missing tokens", R.SMALLQ_SCALAR, axis(smallq, "missing_tokens", kv_len=8), ON_OFF),
    Edge("shape.causal", "small q", R.SMALLQ_XQA, axis(smallq, "causal"), ON_OFF),
    Edge("xqa.smallq_enabled", "switch", R.SMALLQ_XQA, axis(smallq, "smallq_xqa"), ON_OFF),
    Edge("xqa.enabled", "small q", R.SMALLQ_XQA, axis(smallq, "decode_xqa"), ON_OFF),
    Edge("xqa.library", "small q", R.SMALLQ_XQA, axis(smallq, "xqa"), ON_OFF),
    Edge(
        "xqa.group",
        "G",
        R.SMALLQ_XQA,
        axis(smallq, "q_heads"),
        {4: False, 5: False, 6: True, 7: False, 8: True, 9: False},
    ),
    Edge("shape.head_dim", "small q", R.SMALLQ_XQA, axis(smallq, "head_dim"), {128: False, 256: True}),
    Edge("shape.window", "small q", R.SMALLQ_XQA, axis(smallq, "window"), {(-1, -1): True, (2047, -1): False}),
    Edge("xqa.no_partition_hint", "hint", R.SMALLQ_XQA, axis(smallq, "partition_hint"), {None: True, 256: False}),
    Edge(
        "xqa.smallq_codec",
        "dtype",
        R.SMALLQ_XQA,
        axis(smallq, "kv_dtype", kv_len=65536),
        {"auto": True, E5M2: True, E4M3: False, "fp8": False},
    ),
    Edge("xqa.smallq_length", "half", R.SMALLQ_XQA, axis(smallq, "kv_len"), {4095: False, 4096: True, 4097: True}),
    Edge(
        "xqa.smallq_length",
        "E5M2",
        R.SMALLQ_XQA,
        axis(smallq, "kv_len", kv_dtype=E5M2),
        {4096: False, 16383: False, 16384: True, 16385: True},
    ),
    Edge(
        "xqa.smallq_length",
        "half under an override",
        R.SMALLQ_XQA,
        axis(smallq, "kv_len", smallq_xqa_min_seq=1000),
        {999: False, 1000: True, 1001: True},
    ),
    Edge(
        "xqa.smallq_length",
        "captured capacity",
        R.SMALLQ_XQA,
        axis(smallq, "workspace_capacity", kv_len=8, capturing=True),
        {4095: False, 4096: True, 262144: True},
    ),
    Edge(
        "xqa.smallq_length",
        "eager capacity is no length",
        R.SMALLQ_XQA,
        axis(smallq, "workspace_capacity", kv_len=100),
        {4096: False, 262144: False},
    ),
]
GROUPED = [
    Edge("grouped.enabled", "switch", R.GROUPED_VERIFY, axis(grouped, "grouped_verify"), ON_OFF),
    Edge(
        "grouped.target",
        "phase",
        R.GROUPED_VERIFY,
        lambda phase: call(phase, 8, 4096, kv_dtype=E5M2),
        {"verify": True, "prefill": False},
    ),
    Edge("shape.one_sequence", "grouped", R.GROUPED_VERIFY, axis(grouped, "num_seqs"), {1: True, 2: False}),
    Edge(
        "grouped.model_len",
        "max_model_len",
        R.GROUPED_VERIFY,
        axis(grouped, "max_model_len"),
        {8192: False, 32767: False, 32768: True, 32769: True},
    ),
    Edge(
        "grouped.model_len",
        "under an override",
        R.GROUPED_VERIFY,
        axis(grouped, "max_model_len", grouped_min_model_len=100),
        {99: False, 100: True},
    ),
    Edge(
        "shape.heads",
        "grouped",
        R.GROUPED_VERIFY,
        lambda heads: grouped(q_heads=heads[0], kv_heads=heads[1]),
        {(6, 1): True, (5, 1): False, (7, 1): False, (12, 2): False},
    ),
    Edge("shape.head_dim", "grouped", R.GROUPED_VERIFY, axis(grouped, "head_dim"), {128: False, 256: True}),
    Edge("shape.window", "grouped", R.GROUPED_VERIFY, axis(grouped, "window"), {(-1, -1): True, (8, 0): False}),
    Edge(
        "grouped.codec",
        "dtype",
        R.GROUPED_VERIFY,
        axis(grouped, "kv_dtype"),
        {"auto": False, "float16": False, E5M2: True, E4M3: True, "fp8": True},
    ),
    Edge(
        "grouped.library",
        "q with a q8 library",
        R.GROUPED_VERIFY,
        axis(grouped, "q_len", grouped_max_q=8),
        {7: True, 8: True, 9: False, 16: False},
    ),
    Edge(
        "grouped.library",
        "q with a q16 library",
        R.GROUPED_VERIFY,
        axis(grouped, "q_len", smallq_max_q=32),
        {15: True, 16: True, 17: False},
    ),
    Edge("grouped.library", "none", R.GROUPED_VERIFY, axis(grouped, "grouped_max_q"), {0: False, 7: False, 8: True}),
    Edge(
        "grouped.strides",
        "bytes",
        R.GROUPED_VERIFY,
        axis(grouped, "stride_elements"),
        {8: False, 16: True, 32: True},
    ),
    Edge("grouped.e4m3_library", "library", R.GROUPED_VERIFY, axis(grouped, "grouped_e4m3", kv_dtype=E4M3), ON_OFF),
    Edge(
        "grouped.e4m3_q8",
        "q",
        R.GROUPED_VERIFY,
        axis(grouped, "q_len", kv_dtype=E4M3),
        {2: False, 7: False, 8: True, 9: False, 16: False},
    ),
    Edge("grouped.e4m3_one_pass", "passes", R.GROUPED_VERIFY, axis(grouped, "one_pass", kv_dtype=E4M3), ON_OFF),
]
DECODE = [
    Edge("xqa.enabled", "decode", R.DECODE_XQA, axis(decode, "decode_xqa"), ON_OFF),
    Edge("xqa.library", "decode", R.DECODE_XQA, axis(decode, "xqa"), ON_OFF),
    Edge("xqa.rows", "padding", R.DECODE_XQA, axis(decode, "query_rows", num_seqs=2), {2: True, 3: False}),
    Edge("shape.head_dim", "decode", R.DECODE_XQA, axis(decode, "head_dim"), {128: False, 256: True}),
    Edge("shape.window", "decode", R.DECODE_XQA, axis(decode, "window"), {(-1, -1): True, (0, -1): False}),
    Edge(
        "xqa.decode_group",
        "half",
        R.DECODE_XQA,
        axis(decode, "q_heads", kv_len=65536),
        {1: False, 3: False, 4: True, 5: False, 6: True, 7: False, 8: True, 9: False},
    ),
    Edge(
        "xqa.decode_group",
        "E5M2",
        R.DECODE_XQA,
        axis(decode, "q_heads", kv_len=65536, kv_dtype=E5M2),
        {4: False, 6: True, 8: True},
    ),
    Edge(
        "xqa.decode_group",
        "E4M3",
        R.DECODE_XQA,
        axis(decode, "q_heads", kv_len=65536, kv_dtype=E4M3),
        {4: False, 6: True, 8: False},
    ),
    Edge("xqa.e4m3_library", "library", R.DECODE_XQA, axis(decode, "xqa_e4m3", kv_dtype=E4M3), ON_OFF),
    Edge("xqa.e4m3_batch", "default", R.DECODE_XQA, axis(decode, "num_seqs", kv_dtype=E4M3), {1: True, 2: False}),
    Edge(
        "xqa.e4m3_batch",
        "with the variable",
        R.DECODE_XQA,
        axis(decode, "num_seqs", kv_dtype=E4M3, e4m3_batch_xqa=True),
        {1: True, 2: True, 15: True, 16: True, 17: False},
    ),
    Edge(
        "xqa.decode_length",
        "E5M2",
        R.DECODE_XQA,
        axis(decode, "kv_len", kv_dtype=E5M2),
        {4096: False, 8192: False, 16383: False, 16384: True, 16385: True},
    ),
    Edge(
        "xqa.decode_length",
        "E5M2 under an override",
        R.DECODE_XQA,
        axis(decode, "kv_len", kv_dtype=E5M2, fp8_xqa_min_seq=500),
        {499: False, 500: True, 501: True},
    ),
    Edge(
        "xqa.decode_length",
        "G 4",
        R.DECODE_XQA,
        axis(decode, "kv_len", q_heads=4),
        {4097: False, 32767: False, 32768: True, 32769: True},
    ),
    Edge(
        "xqa.decode_length",
        "G 4 under an override",
        R.DECODE_XQA,
        axis(decode, "kv_len", q_heads=4, q4_xqa_min_seq=100),
        {99: False, 100: True},
    ),
    Edge("xqa.decode_length", "G 6 any length", R.DECODE_XQA, axis(decode, "kv_len"), {1: True, 2: True}),
    Edge(
        "xqa.decode_length",
        "E4M3 any length",
        R.DECODE_XQA,
        axis(decode, "kv_len", kv_dtype=E4M3),
        {1: True, 1025: True},
    ),
    Edge(
        "xqa.decode_length",
        "static hint of a capture",
        R.DECODE_XQA,
        axis(decode, "static_hint", kv_dtype=E5M2, kv_len=1, capturing=True),
        {8192: False, 16383: False, 16384: True, 262144: True},
    ),
    Edge(
        "xqa.decode_length",
        "capacity of a capture",
        R.DECODE_XQA,
        axis(decode, "workspace_capacity", kv_dtype=E5M2, kv_len=1, capturing=True),
        {16383: False, 16384: True},
    ),
    Edge(
        "xqa.decode_length",
        "static hint under a larger capacity",
        R.DECODE_XQA,
        axis(decode, "static_hint", kv_dtype=E5M2, kv_len=1, capturing=True, workspace_capacity=262144),
        {8192: False, 16384: True},
    ),
    Edge(
        "xqa.decode_length",
        "eager capacity is no length",
        R.DECODE_XQA,
        axis(decode, "workspace_capacity", kv_dtype=E5M2, kv_len=4096),
        {16384: False, 262144: False},
    ),
]
PREFILL = [
    Edge("exact.enabled", "switch", R.PREFILL_DENSE_EXACT, axis(fresh, "exact_dense"), ON_OFF),
    Edge("exact.library", "library", R.PREFILL_DENSE_EXACT, axis(fresh, "dense_exact"), ON_OFF),
    Edge("exact.min_q", "q", R.PREFILL_DENSE_EXACT, fresh, {1023: False, 1024: True, 1025: True}),
    Edge("exact.out", "output", R.PREFILL_DENSE_EXACT, axis(fresh, "out_contiguous"), ON_OFF),
    Edge("exact.cu_seqlens", "starts", R.PREFILL_DENSE_EXACT, axis(fresh, "cu_seqlens_int32"), ON_OFF),
    Edge("shape.head_dim", "exact", R.PREFILL_DENSE_EXACT, axis(fresh, "head_dim"), {128: False, 256: True}),
    Edge("shape.causal", "exact", R.PREFILL_DENSE_EXACT, axis(fresh, "causal"), ON_OFF),
    Edge("shape.window", "exact", R.PREFILL_DENSE_EXACT, axis(fresh, "window"), {(-1, -1): True, (99, -1): False}),
    Edge("gather.enabled", "switch", R.PREFILL_GATHER_EXACT, axis(gather, "gather_dense"), ON_OFF),
    Edge("shape.one_sequence", "gather", R.PREFILL_GATHER_EXACT, axis(gather, "num_seqs"), {1: True, 2: False}),
    Edge(
        "shape.plain_kv",
        "dtype",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "kv_dtype"),
        {"auto": True, "float16": True, E5M2: False, E4M3: False},
    ),
    Edge("shape.eager", "capture", R.PREFILL_GATHER_EXACT, axis(gather, "capturing"), OFF_ON),
    Edge(
        "gather.min_q",
        "q",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "q_len"),
        {2048: False, 4032: False, 4096: True, 4160: True},
    ),
    Edge(
        "gather.min_kv",
        "kv",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "kv_len"),
        {8128: False, 8192: True, 8256: True},
    ),
    Edge(
        "gather.min_q",
        "q under an override",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "q_len", gather_min_q=1088),
        {1024: False, 1088: True},
    ),
    Edge(
        "gather.min_kv",
        "kv under an override",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "kv_len", gather_min_kv=4224),
        {4160: False, 4224: True},
    ),
    Edge(
        "gather.kv_over_q",
        "kv of 8192 rows whose own tokens are missing",
        R.PREFILL_GATHER_EXACT,
        lambda kv: prefill(q_len=8192, kv_len=kv, missing_tokens=True),
        {8192: False, 8256: True},
    ),
    Edge(
        "gather.align_q",
        "q",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "q_len"),
        {4097: False, 4159: False, 4160: True},
    ),
    Edge(
        "gather.align_kv",
        "kv",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "kv_len"),
        {8193: False, 8224: False, 8255: False, 8256: True},
    ),
    Edge(
        "gather.workspace",
        "memory",
        R.PREFILL_GATHER_EXACT,
        axis(gather, "out_of_memory"),
        {(): True, (Workspace.GATHER,): False, (Workspace.BRIDGE,): True},
    ),
    Edge("gqa.enabled", "switch", R.PREFILL_GATHER_GQA, axis(gqa, "gqa_prefill"), ON_OFF),
    Edge("gqa.library", "library", R.PREFILL_GATHER_GQA, axis(gqa, "dense_gqa"), ON_OFF),
    Edge("shape.heads", "gqa", R.PREFILL_GATHER_GQA, axis(gqa, "q_heads"), {4: False, 6: True, 8: False}),
    Edge("gqa.q", "q", R.PREFILL_GATHER_GQA, axis(gqa, "q_len"), {7936: False, 8000: True, 8064: False}),
    Edge(
        "gqa.kv",
        "kv",
        R.PREFILL_GATHER_GQA,
        axis(gqa, "kv_len"),
        {15936: False, 16000: True, 16064: False, 24000: True, 248000: True, 256000: True, 264000: False},
    ),
    Edge(
        "gqa.scale",
        "scale",
        R.PREFILL_GATHER_GQA,
        axis(gqa, "scale"),
        {1 / 16: True, 0.0624999: False, 0.0625001: False},
    ),
    Edge(
        "gqa.workspace",
        "memory",
        R.PREFILL_GATHER_GQA,
        axis(gqa, "out_of_memory"),
        {(): True, (Workspace.GQA,): False, (Workspace.SPLIT_KV,): True},
    ),
    Edge("split_kv.enabled", "switch", R.PREFILL_GATHER_SPLIT_KV, axis(split, "split_kv"), ON_OFF),
    Edge("split_kv.library", "library", R.PREFILL_GATHER_SPLIT_KV, axis(split, "dense_split_kv"), ON_OFF),
    Edge("shape.heads", "split", R.PREFILL_GATHER_SPLIT_KV, axis(split, "q_heads"), {4: False, 6: True}),
    Edge(
        "split_kv.q",
        "q",
        R.PREFILL_GATHER_SPLIT_KV,
        axis(split, "q_len", gqa_prefill=False),
        {4096: True, 4160: False, 8000: False},
    ),
    Edge(
        "split_kv.q",
        "q with the experiment",
        R.PREFILL_GATHER_SPLIT_KV,
        axis(split, "q_len", gqa_prefill=False, split_kv_q8000=True),
        {4096: True, 7936: False, 8000: True, 8064: False},
    ),
    Edge(
        "split_kv.min_kv",
        "kv",
        R.PREFILL_GATHER_SPLIT_KV,
        axis(split, "kv_len"),
        {16384: False, 32704: False, 32768: True, 32832: True, 65536: True},
    ),
    Edge(
        "split_kv.min_kv",
        "kv under an override",
        R.PREFILL_GATHER_SPLIT_KV,
        axis(split, "kv_len", split_kv_min_kv=16384),
        {16320: False, 16384: True},
    ),
    Edge(
        "split_kv.workspace",
        "memory",
        R.PREFILL_GATHER_SPLIT_KV,
        axis(split, "out_of_memory"),
        {(): True, (Workspace.SPLIT_KV,): False},
    ),
    Edge("bridge.enabled", "switch", R.PREFILL_BRIDGE_PAGED, axis(bridge, "fp8_bridge"), ON_OFF),
    Edge("bridge.library", "library", R.PREFILL_BRIDGE_PAGED, axis(bridge, "bridge"), ON_OFF),
    Edge(
        "bridge.codec",
        "dtype",
        R.PREFILL_BRIDGE_PAGED,
        axis(bridge, "kv_dtype"),
        {"auto": False, E5M2: True, E4M3: False},
    ),
    Edge("shape.one_sequence", "bridge", R.PREFILL_BRIDGE_PAGED, axis(bridge, "num_seqs"), {1: True, 2: False}),
    Edge("shape.head_dim", "bridge", R.PREFILL_BRIDGE_PAGED, axis(bridge, "head_dim"), {128: False, 256: True}),
    Edge("shape.causal", "bridge", R.PREFILL_BRIDGE_PAGED, axis(bridge, "causal"), ON_OFF),
    Edge("shape.window", "bridge", R.PREFILL_BRIDGE_PAGED, axis(bridge, "window"), {(-1, -1): True, (5, -1): False}),
    Edge("bridge.min_q", "q", R.PREFILL_BRIDGE_PAGED, axis(bridge, "q_len"), {31: False, 32: True, 33: True}),
    Edge(
        "bridge.workspace",
        "memory",
        R.PREFILL_BRIDGE_PAGED,
        axis(bridge, "out_of_memory"),
        {(): True, (Workspace.BRIDGE,): False},
    ),
    Edge(
        "bridge.dense_tail",
        "kv",
        R.PREFILL_BRIDGE_DENSE,
        axis(bridge, "kv_len", q_len=1616),
        {3231: False, 3232: True, 3233: False, 3264: True},
    ),
]
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
