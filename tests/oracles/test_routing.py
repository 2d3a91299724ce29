"""The routing oracle on decisions worked by hand from the published facts."""

from __future__ import annotations

from typing import Any

import pytest

from suites.oracles import routing

AXES: dict[str, Any] = {
    "platform": "cuda",
    "capability": (7, 0),
    "kv_dtype": "auto",
    "phase": "decode",
    "attention": "decoder",
    "draft": False,
    "alibi": False,
    "softcap": False,
    "sinks": False,
    "head_dim": 256,
    "q_heads": 6,
    "kv_heads": 1,
    "scale": 0.0625,
    "causal": True,
    "window": (-1, -1),
    "num_seqs": 1,
    "q_len": 1,
    "kv_len": 4097,
    "query_rows": 0,
    "prefix": True,
    "missing_tokens": False,
    "page_size": 16,
    "stride_elements": 256,
    "out_contiguous": True,
    "cu_seqlens_int32": True,
    "capturing": False,
    "persistent_rows": True,
    "max_seq_hint": None,
    "static_hint": None,
    "workspace_capacity": None,
    "max_model_len": 262144,
    "partition_hint": None,
    "one_pass": True,
    "out_of_memory": (),
}
NATIVE: dict[str, Any] = {
    "paged": True,
    "xqa": True,
    "xqa_e4m3": True,
    "grouped_max_q": 16,
    "grouped_e4m3": True,
    "bridge": True,
    "dense_exact": True,
    "dense_split_kv": True,
    "dense_gqa": True,
}
ENV: dict[str, Any] = {
    "backend": True,
    "allow_fallback": False,
    "reference_prefill": False,
    "smallq_max_q": 16,
    "smallq_xqa": True,
    "smallq_xqa_min_seq": 4096,
    "decode_xqa": True,
    "fp8_xqa_min_seq": 16384,
    "q4_xqa_min_seq": 32768,
    "e4m3_batch_xqa": False,
    "partition_size": None,
    "aligned_page_partition": True,
    "mtp5_dual_cta": True,
    "mtp5_partition_size": 1024,
    "grouped_verify": True,
    "grouped_min_model_len": 32768,
    "gather_dense": True,
    "gather_min_q": 4096,
    "gather_min_kv": 8192,
    "exact_dense": True,
    "split_kv": True,
    "split_kv_min_kv": 32768,
    "split_kv_q8000": False,
    "gqa_prefill": True,
    "fp8_bridge": True,
}

PUBLISHED: dict[str, tuple[dict[str, Any], str | None]] = {
    "G6 half at 4097": ({}, "decode_xqa"),
    "G4 half at 4097": ({"q_heads": 4}, "decode_scalar"),
    "G4 half at 32769": ({"q_heads": 4, "kv_len": 32769}, "decode_xqa"),
    "E4M3 at 1025": ({"kv_dtype": "fp8_e4m3", "kv_len": 1025, "page_size": 1568}, "decode_xqa"),
    "E5M2 at 16383": ({"kv_dtype": "fp8_e5m2", "kv_len": 16383}, "decode_scalar"),
    "E5M2 at 16384": ({"kv_dtype": "fp8_e5m2", "kv_len": 16384}, "decode_xqa"),
    "E5M2 G4 at 65536": ({"kv_dtype": "fp8_e5m2", "kv_len": 65536, "q_heads": 4}, "decode_scalar"),
    "E5M2 G8 at 65536": ({"kv_dtype": "fp8_e5m2", "kv_len": 65536, "q_heads": 8}, "decode_xqa"),
    "captured at 8192": (
        {"kv_dtype": "fp8_e5m2", "kv_len": 1, "capturing": True, "static_hint": 8192, "workspace_capacity": 8192},
        "decode_scalar",
    ),
    "captured at 16384": (
        {"kv_dtype": "fp8_e5m2", "kv_len": 1, "capturing": True, "static_hint": 16384, "workspace_capacity": 16384},
        "decode_xqa",
    ),
    "gather at 8192": ({"phase": "prefill", "q_len": 4096, "kv_len": 8192}, "prefill_gather_exact"),
    "no gather for 2048 rows": ({"phase": "prefill", "q_len": 2048, "kv_len": 8192}, "prefill_paged"),
    "no gather of 4096 keys": ({"phase": "prefill", "q_len": 4096, "kv_len": 4096}, "prefill_paged"),
    "no gather of 8224 keys": ({"phase": "prefill", "q_len": 4096, "kv_len": 8224}, "prefill_paged"),
    "no gather for two": ({"phase": "prefill", "q_len": 4096, "kv_len": 8192, "num_seqs": 2}, "prefill_paged"),
    "three splits at 32768": ({"phase": "prefill", "q_len": 4096, "kv_len": 32768}, "prefill_gather_split_kv"),
    "no splits at 16384": ({"phase": "prefill", "q_len": 4096, "kv_len": 16384}, "prefill_gather_exact"),
    "no splits for 4 heads": (
        {"phase": "prefill", "q_len": 4096, "kv_len": 65536, "q_heads": 4},
        "prefill_gather_exact",
    ),
    "exact dense": ({"phase": "prefill", "q_len": 1024, "kv_len": 1024, "prefix": False}, "prefill_dense_exact"),
    "tokens missing": (
        {"phase": "prefill", "q_len": 15, "kv_len": 15, "prefix": False, "missing_tokens": True},
        "smallq_scalar",
    ),
    "bridge": ({"phase": "prefill", "q_len": 1616, "kv_len": 3232, "kv_dtype": "fp8_e5m2"}, "prefill_bridge_dense"),
    "grouped E4M3": ({"phase": "verify", "q_len": 8, "kv_dtype": "fp8_e4m3"}, "grouped_verify"),
    "grouped E4M3 with q 16": ({"phase": "verify", "q_len": 16, "kv_dtype": "fp8_e4m3"}, "smallq_scalar"),
    "grouped in a short model": (
        {"phase": "verify", "q_len": 8, "kv_dtype": "fp8_e5m2", "max_model_len": 8192},
        "smallq_scalar",
    ),
    "capability 7.5": ({"capability": (7, 5)}, "platform_default"),
    "ALiBi": ({"alibi": True}, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_decision(name: str) -> None:
    axes, route = PUBLISHED[name]
    assert routing.expected(AXES | axes, NATIVE, ENV).route == route


def test_published_variables() -> None:
    assert routing.expected(AXES, NATIVE, ENV | {"decode_xqa": False}).route == "decode_scalar"
    assert routing.expected(AXES, NATIVE, ENV | {"backend": False}).route == "platform_default"
    assert routing.expected(AXES | {"alibi": True}, NATIVE, ENV | {"allow_fallback": True}).route == "declared_fallback"


@pytest.mark.parametrize(
    ("axes", "size"),
    [
        ({"kv_len": 180224, "page_size": 784}, 256),
        ({"kv_len": 180224, "page_size": 16}, 1024),
        ({"kv_len": 1025, "page_size": 1568, "kv_dtype": "fp8_e4m3"}, 64),
        ({"kv_len": 65536, "page_size": 1616, "kv_dtype": "fp8_e5m2"}, 256),
        ({"kv_len": 65536, "page_size": 16, "kv_dtype": "fp8_e5m2"}, 1024),
    ],
)
def test_published_partition(axes: dict[str, Any], size: int) -> None:
    assert routing.expected(AXES | axes, NATIVE, ENV).partition == size


def test_the_alias() -> None:
    sm70: dict[str, Any] = {"cuda": True, "backend": True, "capability": (7, 0), "checkpoint": None}
    assert routing.stored_name("fp8", **sm70) == "fp8_e5m2"
    assert routing.stored_name("fp8_e4m3", **sm70) == "fp8_e4m3"
    assert routing.stored_name("fp8", **sm70 | {"backend": False}) == "fp8"
    assert routing.stored_name("auto", **sm70 | {"checkpoint": "fp8_e4m3"}) == "fp8_e4m3"


def test_published_captures() -> None:
    assert routing.plain_captures(1) == [1, 2]
    assert routing.plain_captures(12) == [1, 2, 4, 8, 12]
    assert routing.plain_captures(256) == [1, 2, 4, 8, 16]
    assert routing.speculative_captures(1, 5) == [5]
    assert routing.speculative_captures(32, 5) == [5, 10, 15, 20, 30, 40, 60, 80]
