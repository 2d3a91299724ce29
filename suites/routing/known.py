"""One plain request a route: what a case starts from when it asks about that route's rules."""

from __future__ import annotations

from engine.routing import Route, RouteRequest
from suites.routing.axes import call

KNOWN: dict[Route, RouteRequest] = {
    Route.PROFILE_ZERO: call("profile", 1, 1),
    Route.DIAGNOSTIC_REFERENCE: call("prefill", 512, 2048, reference_prefill=True),
    Route.GROUPED_VERIFY: call("verify", 8, 1032, kv_dtype="fp8_e4m3", page_size=1648),
    Route.SMALLQ_XQA: call("verify", 5, 65536, kv_dtype="fp8_e5m2", page_size=1616, grouped_verify=False),
    Route.SMALLQ_SCALAR: call("verify", 5, 768),
    Route.PREFILL_GATHER_GQA: call("prefill", 8000, 16000, page_size=784),
    Route.PREFILL_GATHER_SPLIT_KV: call("prefill", 4096, 65536, page_size=784),
    Route.PREFILL_GATHER_EXACT: call("prefill", 4096, 8192, page_size=784),
    Route.PREFILL_BRIDGE_DENSE: call("prefill", 1616, 3232, kv_dtype="fp8_e5m2", page_size=1616),
    Route.PREFILL_BRIDGE_PAGED: call("prefill", 64, 3233, kv_dtype="fp8_e5m2", page_size=1616),
    Route.PREFILL_PAGED: call("prefill", 512, 2048),
    Route.PREFILL_DENSE_EXACT: call("prefill", 1024, 1024),
    Route.PREFILL_DENSE: call("prefill", 512, 512),
    Route.DECODE_XQA: call("decode", 1, 4097),
    Route.DECODE_SCALAR: call("decode", 1, 4097, q_heads=4),
    Route.PLATFORM_DEFAULT: call("decode", 1, 4097, capability=(7, 5)),
    Route.DECLARED_FALLBACK: call("decode", 1, 4097, alibi=True, allow_fallback=True),
}
