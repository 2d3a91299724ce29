"""Edges of the rules about card, layer, capture and phase."""

from __future__ import annotations

from engine.routing import Attention, Platform, RouteRequest
from suites.routing.axes import call
from suites.routing.edges import E4M3, E5M2, OFF_ON, ON_OFF, Edge, R, axis, decode, fresh, prefill, smallq


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
