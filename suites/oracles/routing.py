"""Which kernel should serve an attention call, written a second time from the published facts: a decision tree.

It imports nothing of the engine and shares no structure with it: plain axes in, the name of a counter out. ``None``
means that the call must be refused. Lengths are tokens; ``env`` holds the overrides by field name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Axes = Mapping[str, Any]

HALF = ("auto", "float16", "bfloat16", "float32")
E4M3 = ("fp8_e4m3", "fp8")
E5M2 = ("fp8_e5m2",)


@dataclass(frozen=True, slots=True)
class Expected:
    """``route``: the counter's name, None for a refusal. ``partition``: tokens a partition, where the route splits."""

    route: str | None
    partition: int | None = None


def stored_name(asked: str, *, cuda: bool, backend: bool, capability: tuple[int, int], checkpoint: str | None) -> str:
    """The KV dtype name after resolution: only a bare ``fp8`` on SM70 under the backend changes, into E5M2."""
    if asked == "auto":
        return checkpoint or "auto"
    sm70 = cuda and backend and capability == (7, 0)
    return "fp8_e5m2" if asked == "fp8" and sm70 else asked


def asks_capability(asked: str, *, cuda: bool, backend: bool, checkpoint: str | None) -> bool:
    """Whether resolving this name may look at the device at all."""
    return asked == "fp8" and cuda and backend


def deciding_length(axes: Axes) -> int:
    """Capturing: static hint, else workspace capacity, else the longest sequence. Eager: the longest sequence."""
    longest = axes["kv_len"] if axes["max_seq_hint"] is None else axes["max_seq_hint"]
    if axes["capturing"]:
        for name in ("static_hint", "workspace_capacity"):
            if axes[name] is not None:
                return int(axes[name])
    return int(longest)


def expected(axes: Axes, native: Axes, env: Axes) -> Expected:
    """The published decision for one call."""
    if not env["backend"] or (axes["platform"] == "cuda" and axes["capability"] != (7, 0)):
        return Expected(None if axes["capturing"] else "platform_default")
    must_stop = _stops(axes, env)
    if _layer_is_inadmissible(axes, native):
        tolerated = env["allow_fallback"] or axes["draft"]
        return Expected("declared_fallback" if tolerated and not axes["capturing"] and not must_stop else None)
    if must_stop:
        return Expected(None)
    if axes["phase"] == "profile":
        return Expected("profile_zero")
    if axes["q_len"] == 1:
        return _decode(axes, native, env)
    if env["reference_prefill"]:
        if not axes["capturing"]:
            return Expected("diagnostic_reference")
        return Expected(None)
    cached = axes["prefix"] or axes["missing_tokens"]
    if axes["causal"] and axes["q_len"] <= env["smallq_max_q"] and (cached or axes["capturing"]):
        return _small_q(axes, native, env)
    if cached:
        return Expected(_prefix_prefill(axes, native, env))
    return Expected("prefill_dense_exact" if _exact(axes, native, env) else "prefill_dense")


def _layer_is_inadmissible(axes: Axes, native: Axes) -> bool:
    features = axes["alibi"] or axes["softcap"] or axes["sinks"] or axes["attention"] != "decoder"
    stored = axes["kv_dtype"] in HALF + E4M3 + E5M2
    shape = axes["head_dim"] in (64, 128, 256) and axes["stride_elements"] % 8 == 0
    return bool(features or not stored or not shape or not native["paged"])


def _stops(axes: Axes, env: Axes) -> bool:
    longest = axes["kv_len"] if axes["max_seq_hint"] is None else axes["max_seq_hint"]
    covered = max(deciding_length(axes), longest)
    if covered < axes["kv_len"]:
        return True
    if axes["workspace_capacity"] is not None and axes["workspace_capacity"] < covered:
        return True
    rows_in_graph = axes["capturing"] and axes["causal"] and 1 < axes["q_len"] <= env["smallq_max_q"]
    return bool(rows_in_graph and not axes["persistent_rows"] and axes["phase"] != "profile")


def _group(axes: Axes) -> int:
    return int(axes["q_heads"] // axes["kv_heads"])


def _open(axes: Axes) -> bool:
    return tuple(axes["window"]) == (-1, -1)


def _decode(axes: Axes, native: Axes, env: Axes) -> Expected:
    group, dtype, length = _group(axes), axes["kv_dtype"], deciding_length(axes)
    rows = axes["query_rows"] or axes["num_seqs"]
    shape = axes["head_dim"] == 256 and _open(axes) and rows == axes["num_seqs"]
    if dtype in HALF:
        wanted = group in (6, 8) or (group == 4 and length >= env["q4_xqa_min_seq"])
    elif dtype in E5M2:
        wanted = group in (6, 8) and length >= env["fp8_xqa_min_seq"]
    else:
        batch = axes["num_seqs"] == 1 or (env["e4m3_batch_xqa"] and axes["num_seqs"] <= 16)
        wanted = group == 6 and batch and native["xqa_e4m3"]
    xqa = wanted and shape and env["decode_xqa"] and native["xqa"]
    aligned = (
        env["aligned_page_partition"]
        and rows == 1
        and group == 6
        and axes["head_dim"] == 256
        and axes["page_size"] % 16 == 0
        and axes["page_size"] >= 256
    )
    if env["partition_size"] is not None:
        size = env["partition_size"]
    elif axes["partition_hint"] is not None:
        size = axes["partition_hint"]
    elif aligned and dtype in E4M3:
        size = 64
    elif aligned and (dtype in E5M2 or axes["page_size"] == 784):
        size = 256
    else:
        size = 1024 if length >= 32768 else 256
    return Expected("decode_xqa" if xqa else "decode_scalar", size)


def _small_q(axes: Axes, native: Axes, env: Axes) -> Expected:
    dtype, group, q_len = axes["kv_dtype"], _group(axes), axes["q_len"]
    grouped = (
        env["grouped_verify"]
        and axes["phase"] == "verify"
        and axes["num_seqs"] == 1
        and axes["max_model_len"] >= env["grouped_min_model_len"]
        and (axes["q_heads"], axes["kv_heads"], axes["head_dim"]) == (6, 1, 256)
        and _open(axes)
        and q_len <= native["grouped_max_q"]
        and axes["stride_elements"] % 16 == 0
    )
    if grouped and dtype in E4M3:
        grouped = native["grouped_e4m3"] and q_len == 8 and axes["one_pass"]
    if grouped and dtype in E4M3 + E5M2:
        return Expected("grouped_verify")
    hint = axes["partition_hint"]
    longest = axes["kv_len"] if axes["max_seq_hint"] is None else axes["max_seq_hint"]
    if axes["capturing"] and axes["workspace_capacity"] is not None:
        longest = max(longest, axes["workspace_capacity"])
    least = env["smallq_xqa_min_seq"]
    if dtype in E5M2:
        least = max(least, env["fp8_xqa_min_seq"])
    xqa = (
        env["decode_xqa"]
        and env["smallq_xqa"]
        and native["xqa"]
        and axes["head_dim"] == 256
        and group in (6, 8)
        and _open(axes)
        and hint is None
        and dtype in HALF + E5M2
        and longest >= least
    )
    if env["partition_size"] is not None:
        size = env["partition_size"]
    elif hint is not None:
        size = hint
    elif xqa and env["mtp5_dual_cta"] and dtype in E5M2 and (axes["page_size"], q_len, group) == (1616, 5, 6):
        size = env["mtp5_partition_size"]
    else:
        size = 1024 if deciding_length(axes) >= 32768 else 256
    return Expected("smallq_xqa" if xqa else "smallq_scalar", size)


def _exact(axes: Axes, native: Axes, env: Axes) -> bool:
    return bool(
        env["exact_dense"]
        and native["dense_exact"]
        and axes["head_dim"] == 256
        and axes["causal"]
        and _open(axes)
        and axes["q_len"] >= 1024
        and axes["out_contiguous"]
        and axes["cu_seqlens_int32"]
    )


def _prefix_prefill(axes: Axes, native: Axes, env: Axes) -> str:
    q_len, kv_len, failed = axes["q_len"], axes["kv_len"], axes["out_of_memory"]
    single = axes["num_seqs"] == 1
    if (
        axes["kv_dtype"] in HALF
        and single
        and env["gather_dense"]
        and not axes["capturing"]
        and q_len >= env["gather_min_q"]
        and kv_len >= env["gather_min_kv"]
        and kv_len > q_len
        and q_len % 64 == kv_len % 64 == 0
        and "gather" not in failed
        and _exact(axes, native, env)
    ):
        return _dense_after_gather(axes, native, env)
    bridged = (
        axes["kv_dtype"] in E5M2
        and single
        and env["fp8_bridge"]
        and native["bridge"]
        and axes["head_dim"] == 256
        and q_len >= 32
        and axes["causal"]
        and _open(axes)
        and "bridge" not in failed
    )
    if not bridged:
        return "prefill_paged"
    return "prefill_bridge_dense" if kv_len % 32 == 0 and _exact(axes, native, env) else "prefill_bridge_paged"


def _dense_after_gather(axes: Axes, native: Axes, env: Axes) -> str:
    q_len, kv_len, failed = axes["q_len"], axes["kv_len"], axes["out_of_memory"]
    heads = (axes["q_heads"], axes["kv_heads"]) == (6, 1)
    in_range = kv_len % 8000 == 0 and 16000 <= kv_len <= 256000
    gqa = env["gqa_prefill"] and native["dense_gqa"] and heads and q_len == 8000 and in_range
    if gqa and axes["scale"] == 1 / 16 and "gqa" not in failed:
        return "prefill_gather_gqa"
    chunk = q_len == 4096 or (env["split_kv_q8000"] and q_len == 8000)
    split = env["split_kv"] and native["dense_split_kv"] and heads and chunk and kv_len >= env["split_kv_min_kv"]
    return "prefill_gather_split_kv" if split and "split_kv" not in failed else "prefill_gather_exact"


def plain_captures(max_num_seqs: int) -> list[int]:
    """Graph batch sizes without speculation, as published: 1 and 2 always, then doubling, ending at min(limit, 16)."""
    top = min(max_num_seqs, 16)
    sizes = [1, 2]
    while sizes[-1] * 2 <= top:
        sizes.append(sizes[-1] * 2)
    return sizes if top <= sizes[-1] else [*sizes, top]


def speculative_captures(max_num_seqs: int, width: int) -> list[int]:
    """Graph row counts with speculation: whole requests, in steps of one up to 4, two up to 8, four up to 16."""
    top = min(max_num_seqs, 16)
    requests, step = [1], 1
    while requests[-1] + step <= top:
        requests.append(requests[-1] + step)
        step = 1 if requests[-1] < 4 else 2 if requests[-1] < 8 else 4
    if requests[-1] != top:
        requests.append(top)
    return [width * count for count in requests]
