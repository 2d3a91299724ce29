"""Every pair of values of any two axes, each case against the oracle."""

from __future__ import annotations

from typing import Any

import pytest

from engine.routing import Attention, Platform, RouteRequest, Workspace
from suites.routing import pairwise
from suites.routing.axes import call, check

pytestmark = pytest.mark.group("routing: pairwise")

# One axis a question; the names are what a case id shows. Lengths that matter lie on, under and over their thresholds.
PHASES: dict[str, tuple[str, int]] = {
    "profile": ("profile", 1),
    "decode": ("decode", 1),
    "verify5": ("verify", 5),
    "verify8": ("verify", 8),
    "verify16": ("verify", 16),
    "prefill2": ("prefill", 2),
    "prefill17": ("prefill", 17),
    "prefill32": ("prefill", 32),
    "prefill1024": ("prefill", 1024),
    "prefill4096": ("prefill", 4096),
    "prefill8000": ("prefill", 8000),
}
KEYS = ("fresh", "1025", "4096", "8192", "8224", "16000", "16383", "16384", "32768", "64000", "256000")
AXES: dict[str, tuple[str, ...]] = {
    "phase": tuple(PHASES),
    "kv": KEYS,
    "dtype": ("auto", "float16", "fp8_e5m2", "fp8_e4m3", "fp8", "int8"),
    "heads": ("6:1", "12:2", "8:1", "4:1", "9:3"),
    "head_dim": ("256", "128", "64", "80"),
    "platform": ("cuda7.0", "cuda7.5", "cuda9.0", "cpu"),
    "backend": ("on", "off"),
    "feature": ("none", "alibi", "softcap", "sinks", "encoder"),
    "fallback": ("refused", "allowed", "draft"),
    "causal": ("causal", "both"),
    "window": ("open", "left2047"),
    "seqs": ("1", "2", "16", "17"),
    "padding": ("0", "3"),
    "page": ("16", "784", "1616", "1648"),
    "strides": ("256", "8", "1"),
    "capture": ("eager", "persistent", "transient"),
    "hint": ("none", "static8192", "static32768"),
    "capacity": ("none", "262144", "short"),
    "partition": ("none", "hint256", "env512"),
    "library": ("new", "q8", "no_xqa", "no_e4m3", "no_prefill", "none"),
    "memory": ("fits", "gather", "bridge", "split_kv", "gqa"),
    "layout": ("contiguous", "strided_out", "int64_starts"),
    "model_len": ("262144", "32768", "8192"),
    "switch": ("default", "no_xqa", "no_grouped", "no_gather", "no_exact", "no_bridge", "reference", "e4m3_batch"),
    "passes": ("one", "two"),
    "tokens": ("here", "missing"),
}
_LIBRARY: dict[str, dict[str, Any]] = {
    "new": {},
    "q8": {"grouped_max_q": 8, "grouped_e4m3": False},
    "no_xqa": {"xqa": False},
    "no_e4m3": {"xqa_e4m3": False, "grouped_e4m3": False},
    "no_prefill": {"dense_exact": False, "dense_gqa": False, "dense_split_kv": False, "bridge": False},
    "none": {"paged": False},
}
_SWITCH: dict[str, dict[str, Any]] = {
    "default": {},
    "no_xqa": {"decode_xqa": False},
    "no_grouped": {"grouped_verify": False},
    "no_gather": {"gather_dense": False},
    "no_exact": {"exact_dense": False},
    "no_bridge": {"fp8_bridge": False},
    "reference": {"reference_prefill": True},
    "e4m3_batch": {"e4m3_batch_xqa": True},
}


def build(case: pairwise.Case) -> RouteRequest:
    """The request that a case describes. ``fresh`` and short keys mean no prefix, so every combination is legal."""
    phase, q_len = PHASES[case["phase"]]
    kv_len = q_len if case["kv"] == "fresh" else max(q_len, int(case["kv"]))
    q_heads, kv_heads = map(int, case["heads"].split(":"))
    on_cpu = case["platform"] == "cpu"
    capability = None if on_cpu else (int(case["platform"][4]), int(case["platform"][6]))
    seqs = int(case["seqs"])
    return call(
        phase,
        q_len,
        kv_len,
        platform=Platform.CPU if on_cpu else Platform.CUDA,
        capability=capability,
        kv_dtype=case["dtype"],
        attention=Attention.ENCODER if case["feature"] == "encoder" else Attention.DECODER,
        alibi=case["feature"] == "alibi",
        softcap=case["feature"] == "softcap",
        sinks=case["feature"] == "sinks",
        draft=case["fallback"] == "draft",
        allow_fallback=case["fallback"] == "allowed",
        backend=case["backend"] == "on",
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=int(case["head_dim"]),
        causal=case["causal"] == "causal",
        window=(-1, -1) if case["window"] == "open" else (2047, -1),
        num_seqs=seqs,
        query_rows=seqs * q_len + int(case["padding"]),
        page_size=int(case["page"]),
        stride_elements=int(case["strides"]),
        capturing=case["capture"] != "eager",
        persistent_rows=case["capture"] != "transient",
        static_hint=None if case["hint"] == "none" else int(case["hint"][6:]),
        workspace_capacity={"none": None, "262144": 262144, "short": 64}[case["capacity"]],
        partition_hint=256 if case["partition"] == "hint256" else None,
        partition_size=512 if case["partition"] == "env512" else None,
        out_of_memory=() if case["memory"] == "fits" else (Workspace(case["memory"]),),
        out_contiguous=case["layout"] != "strided_out",
        cu_seqlens_int32=case["layout"] != "int64_starts",
        max_model_len=int(case["model_len"]),
        one_pass=case["passes"] == "one",
        missing_tokens=case["tokens"] == "missing",
        **_LIBRARY[case["library"]],
        **_SWITCH[case["switch"]],
    )


CASES = pairwise.generate(AXES)


def _id(number: int, case: pairwise.Case) -> str:
    return f"{number:03d}-{case['phase']}-kv_{case['kv']}-{case['dtype']}-{case['platform']}"


@pytest.mark.parametrize("case", [pytest.param(case, id=_id(number, case)) for number, case in enumerate(CASES)])
def test_pair(case: pairwise.Case) -> None:
    """All axes vary at once; most of these requests are refused by an early rule, which is what pairs of axes show."""
    check(build(case))


# The same, with every early gate open: pairs of the axes that choose between kernels.
OPEN = {
    axis: levels
    for axis, levels in AXES.items()
    if axis not in ("platform", "backend", "feature", "fallback", "strides", "capacity", "capture")
}
OPEN["dtype"] = ("auto", "fp8_e5m2", "fp8_e4m3")
OPEN["head_dim"] = ("256", "128")
OPEN["library"] = ("new", "q8", "no_xqa", "no_e4m3", "no_prefill")
OPEN["capture"] = ("eager", "persistent")
OPEN["strides"] = ("256", "8")
OPEN["switch"] = tuple(switch for switch in AXES["switch"] if switch != "reference")  # refused under capture
_FIXED = {"platform": "cuda7.0", "backend": "on", "feature": "none", "fallback": "refused", "capacity": "none"}
OPEN_CASES = pairwise.generate(OPEN)


@pytest.mark.parametrize("case", [pytest.param(case, id=_id(n, _FIXED | case)) for n, case in enumerate(OPEN_CASES)])
def test_pair_of_admitted_layers(case: pairwise.Case) -> None:
    """Layers that the backend admits, on its own card: which kernel, for every pair of shapes and switches."""
    request = build(_FIXED | case)
    assert check(request).route is not None, f"an admitted layer got no route: {request}"


@pytest.mark.parametrize("axes", [pytest.param(AXES, id="all_axes"), pytest.param(OPEN, id="admitted_layers")])
def test_every_pair_is_shown(axes: pairwise.Levels) -> None:
    """The generator's promise, counted without it."""
    cases = CASES if axes is AXES else OPEN_CASES
    for first in axes:
        for second in axes:
            if first >= second:
                continue
            shown = {(case[first], case[second]) for case in cases}
            wanted = {(one, other) for one in axes[first] for other in axes[second]}
            assert shown == wanted, f"{first} x {second}: never together: {sorted(wanted - shown)}"
