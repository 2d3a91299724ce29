"""What each kernel of the backend asks of a call, beside the rules of ``rules.py``."""

from __future__ import annotations

from engine.routing.kv_dtype import Codec, codec_of
from engine.routing.overrides import variable_of
from engine.routing.plan import sequence_hint, smallq_hint
from engine.routing.request import Phase, RouteRequest, Workspace
from engine.routing.rules import (
    CAUSAL,
    D256,
    HEADS_6_1,
    NO_WINDOW_RULE,
    NOT_CAPTURING,
    ONE_SEQUENCE,
    PLAIN_KV,
    Rule,
    codec_is,
    fits,
    kv_seen,
    native,
    on,
    switch,
)

GROUPED_STRIDE_BYTES = 16
GROUPED_E4M3_Q = 8
EXACT_MIN_Q = 1024
GATHER_ALIGN = 64
GQA_CHUNK = 8000
GQA_MIN_KV, GQA_MAX_KV = 16000, 256000
GQA_SCALE = 1 / 16
SPLIT_KV_Q = 4096
BRIDGE_MIN_Q = 32
BRIDGE_DENSE_ALIGN = 32
E4M3_BATCH_MAX = 16

# ---- small q: verify as decode rows ---------------------------------------------------------------------------------

SMALLQ_RULES: tuple[Rule, ...] = (
    Rule(
        "smallq.length",
        "q <= {smallq_max_q}",
        lambda x: x.q_len <= x.overrides.smallq_max_q,
        lambda x: f"q {x.q_len}",
        f"a larger {variable_of('smallq_max_q')}",
    ),
    CAUSAL,
    Rule(
        "smallq.context",
        "cached context, or a capture",
        lambda x: x.capturing or x.prefix or x.missing_tokens,
        lambda _: "a fresh prompt outside a capture",
    ),
)

GROUPED_RULES: tuple[Rule, ...] = (
    switch("grouped.enabled", "grouped_verify"),
    Rule(
        "grouped.target",
        "the target of a drafter",
        lambda x: x.phase is Phase.VERIFY,
        lambda x: f"phase {x.phase}",
    ),
    ONE_SEQUENCE,
    Rule(
        "grouped.model_len",
        "max_model_len >= {grouped_min_model_len}",
        lambda x: x.max_model_len >= x.overrides.grouped_min_model_len,
        lambda x: f"max_model_len {x.max_model_len}",
        f"a smaller {variable_of('grouped_min_model_len')}",
    ),
    HEADS_6_1,
    D256,
    NO_WINDOW_RULE,
    Rule("grouped.codec", "E5M2 or E4M3", codec_is(Codec.E5M2, Codec.E4M3), kv_seen),
    Rule(
        "grouped.library",
        "q up to what the library advertises",
        lambda x: x.q_len <= x.native.grouped_max_q,
        lambda x: f"q {x.q_len} with a library for q {x.native.grouped_max_q}",
        "rebuild: python -m native.build",
    ),
    Rule(
        "grouped.strides",
        f"aligned KV strides: multiples of {GROUPED_STRIDE_BYTES} bytes",
        lambda x: x.stride_elements % GROUPED_STRIDE_BYTES == 0,
        lambda x: f"strides of a multiple of {x.stride_elements} bytes",
    ),
    Rule(
        "grouped.e4m3_library",
        "a library that advertises E4M3",
        lambda x: codec_of(x.kv_dtype) is not Codec.E4M3 or x.native.grouped_e4m3,
        lambda _: "E4M3 with a library for E5M2",
        "rebuild: python -m native.build",
    ),
    Rule(
        "grouped.e4m3_q8",
        f"E4M3 with q = {GROUPED_E4M3_Q}",
        lambda x: codec_of(x.kv_dtype) is not Codec.E4M3 or x.q_len == GROUPED_E4M3_Q,
        lambda x: f"E4M3 with q {x.q_len}",
    ),
    Rule(
        "grouped.e4m3_one_pass",
        f"E4M3 in one pass (q = {GROUPED_E4M3_Q})",
        lambda x: codec_of(x.kv_dtype) is not Codec.E4M3 or x.one_pass,
        lambda _: "E4M3 in two passes",
    ),
)


XQA_ENABLED = switch("xqa.enabled", "decode_xqa")
XQA_LIBRARY = native("xqa.library", "xqa")


def smallq_xqa_min(request: RouteRequest) -> int:
    """The length from which small-q rows go to XQA."""
    least = request.overrides.smallq_xqa_min_seq
    return max(least, request.overrides.fp8_xqa_min_seq) if codec_of(request.kv_dtype) is Codec.E5M2 else least


SMALLQ_XQA_RULES: tuple[Rule, ...] = (
    XQA_ENABLED,
    switch("xqa.smallq_enabled", "smallq_xqa"),
    XQA_LIBRARY,
    D256,
    Rule("xqa.group", "G 6 or 8", lambda x: x.group in (6, 8), lambda x: f"G {x.group}"),
    NO_WINDOW_RULE,
    Rule(
        "xqa.no_partition_hint",
        "no explicit partition hint",
        lambda x: x.partition_hint is None,
        lambda x: f"hint {x.partition_hint}",
    ),
    Rule("xqa.smallq_codec", "unquantised KV or E5M2", codec_is(Codec.PLAIN, Codec.E5M2), kv_seen),
    Rule(
        "xqa.smallq_length",
        "a length hint >= {smallq_xqa_min_seq}, E5M2 >= {fp8_xqa_min_seq}",
        lambda x: smallq_hint(x).tokens >= smallq_xqa_min(x),
        lambda x: f"{smallq_hint(x).tokens} ({smallq_hint(x).source})",
        f"a smaller {variable_of('smallq_xqa_min_seq')} or {variable_of('fp8_xqa_min_seq')}",
    ),
)

# ---- decode ---------------------------------------------------------------------------------------------------------


def _decode_group(request: RouteRequest) -> bool:
    allowed = {Codec.PLAIN: (4, 6, 8), Codec.E5M2: (6, 8), Codec.E4M3: (6,)}
    codec = codec_of(request.kv_dtype)
    return codec is not None and request.group in allowed[codec]


def decode_xqa_min(request: RouteRequest) -> int:
    """The length hint from which XQA serves decode: E5M2 and G 4 need long sequences to pay off."""
    if codec_of(request.kv_dtype) is Codec.E5M2:
        return request.overrides.fp8_xqa_min_seq
    return request.overrides.q4_xqa_min_seq if request.group == 4 else 0


def _e4m3_batch(request: RouteRequest) -> bool:
    if codec_of(request.kv_dtype) is not Codec.E4M3 or request.num_seqs == 1:
        return True
    return request.overrides.e4m3_batch_xqa and request.num_seqs <= E4M3_BATCH_MAX


DECODE_XQA_RULES: tuple[Rule, ...] = (
    XQA_ENABLED,
    XQA_LIBRARY,
    Rule(
        "xqa.rows",
        "as many rows as sequences",
        lambda x: x.rows == x.num_seqs,
        lambda x: f"{x.rows} rows for {x.num_seqs} sequences",
    ),
    D256,
    NO_WINDOW_RULE,
    Rule(
        "xqa.decode_group",
        "G 4, 6, 8 unquantised; G 6, 8 E5M2; G 6 E4M3",
        _decode_group,
        lambda x: f"G {x.group}, {kv_seen(x)}",
    ),
    Rule(
        "xqa.e4m3_library",
        "a library whose XQA decodes E4M3",
        lambda x: codec_of(x.kv_dtype) is not Codec.E4M3 or x.native.xqa_e4m3,
        lambda _: "E4M3 with a library without it",
        "rebuild: python -m native.build",
    ),
    Rule(
        "xqa.e4m3_batch",
        f"E4M3 with 1 sequence, or up to {E4M3_BATCH_MAX} with {on('e4m3_batch_xqa')}",
        _e4m3_batch,
        lambda x: f"E4M3 with {x.num_seqs} sequences",
        on("e4m3_batch_xqa"),
    ),
    Rule(
        "xqa.decode_length",
        "a length hint >= {fp8_xqa_min_seq} for E5M2, >= {q4_xqa_min_seq} for G 4",
        lambda x: sequence_hint(x).tokens >= decode_xqa_min(x),
        lambda x: f"{sequence_hint(x).tokens} ({sequence_hint(x).source})",
        f"a smaller {variable_of('fp8_xqa_min_seq')} or {variable_of('q4_xqa_min_seq')}",
    ),
)

# ---- prefill --------------------------------------------------------------------------------------------------------

EXACT_RULES: tuple[Rule, ...] = (
    switch("exact.enabled", "exact_dense"),
    native("exact.library", "dense_exact"),
    D256,
    CAUSAL,
    NO_WINDOW_RULE,
    Rule("exact.min_q", f"q >= {EXACT_MIN_Q}", lambda x: x.q_len >= EXACT_MIN_Q, lambda x: f"q {x.q_len}"),
    Rule("exact.out", "a contiguous output", lambda x: x.out_contiguous, lambda _: "a strided output"),
    Rule("exact.cu_seqlens", "int32 cu_seqlens", lambda x: x.cu_seqlens_int32, lambda _: "other cu_seqlens"),
)
"""What the exact D 256 dense kernel takes, wherever its keys come from."""

GATHER_RULES: tuple[Rule, ...] = (
    switch("gather.enabled", "gather_dense"),
    ONE_SEQUENCE,
    PLAIN_KV,
    NOT_CAPTURING,
    Rule(
        "gather.min_q",
        "q >= {gather_min_q}",
        lambda x: x.q_len >= x.overrides.gather_min_q,
        lambda x: f"q {x.q_len}",
        f"a smaller {variable_of('gather_min_q')}",
    ),
    Rule(
        "gather.min_kv",
        "kv >= {gather_min_kv}",
        lambda x: x.kv_len >= x.overrides.gather_min_kv,
        lambda x: f"kv {x.kv_len}",
        f"a smaller {variable_of('gather_min_kv')}",
    ),
    Rule("gather.kv_over_q", "kv > q", lambda x: x.kv_len > x.q_len, lambda x: f"kv {x.kv_len}, q {x.q_len}"),
    Rule(
        "gather.align_q",
        f"q % {GATHER_ALIGN} == 0",
        lambda x: x.q_len % GATHER_ALIGN == 0,
        lambda x: f"q {x.q_len}",
    ),
    Rule(
        "gather.align_kv",
        f"kv % {GATHER_ALIGN} == 0",
        lambda x: x.kv_len % GATHER_ALIGN == 0,
        lambda x: f"kv {x.kv_len}",
    ),
    *EXACT_RULES,
    fits("gather.workspace", Workspace.GATHER),
)

GQA_RULES: tuple[Rule, ...] = (
    switch("gqa.enabled", "gqa_prefill"),
    native("gqa.library", "dense_gqa"),
    HEADS_6_1,
    Rule("gqa.q", f"q = {GQA_CHUNK}", lambda x: x.q_len == GQA_CHUNK, lambda x: f"q {x.q_len}"),
    Rule(
        "gqa.kv",
        f"kv in {GQA_MIN_KV}..{GQA_MAX_KV}, a multiple of {GQA_CHUNK}",
        lambda x: GQA_MIN_KV <= x.kv_len <= GQA_MAX_KV and x.kv_len % GQA_CHUNK == 0,
        lambda x: f"kv {x.kv_len}",
    ),
    Rule("gqa.scale", "scale = 1/16", lambda x: x.scale == GQA_SCALE, lambda x: f"scale {x.scale!r}"),
    fits("gqa.workspace", Workspace.GQA),
)

SPLIT_KV_RULES: tuple[Rule, ...] = (
    switch("split_kv.enabled", "split_kv"),
    native("split_kv.library", "dense_split_kv"),
    HEADS_6_1,
    Rule(
        "split_kv.q",
        f"q = {SPLIT_KV_Q}, or {GQA_CHUNK} with {on('split_kv_q8000')}",
        lambda x: x.q_len == SPLIT_KV_Q or (x.overrides.split_kv_q8000 and x.q_len == GQA_CHUNK),
        lambda x: f"q {x.q_len}",
        on("split_kv_q8000"),
    ),
    Rule(
        "split_kv.min_kv",
        "kv >= {split_kv_min_kv}",
        lambda x: x.kv_len >= x.overrides.split_kv_min_kv,
        lambda x: f"kv {x.kv_len}",
        f"a smaller {variable_of('split_kv_min_kv')}",
    ),
    fits("split_kv.workspace", Workspace.SPLIT_KV),
)

BRIDGE_RULES: tuple[Rule, ...] = (
    switch("bridge.enabled", "fp8_bridge"),
    native("bridge.library", "bridge"),
    Rule("bridge.codec", "E5M2", codec_is(Codec.E5M2), kv_seen),
    ONE_SEQUENCE,
    D256,
    CAUSAL,
    NO_WINDOW_RULE,
    Rule("bridge.min_q", f"q >= {BRIDGE_MIN_Q}", lambda x: x.q_len >= BRIDGE_MIN_Q, lambda x: f"q {x.q_len}"),
    fits("bridge.workspace", Workspace.BRIDGE),
)

BRIDGE_DENSE_RULE = Rule(
    "bridge.dense_tail",
    f"kv % {BRIDGE_DENSE_ALIGN} == 0, so that the zeroed tail ends a 64-row tile",
    lambda x: x.kv_len % BRIDGE_DENSE_ALIGN == 0,
    lambda x: f"kv {x.kv_len}",
)
