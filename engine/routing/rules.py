"""The rules of the routing policy: each a name, what is allowed, what was seen, and what would allow it. Data.

A rule knows nothing of the others; ``table.py`` says which route asks which rules in which order. ``{name}`` in an
``allowed`` text stands for a field of ``Overrides``. Here are the rules about card, layer, capture and phase, and the
shapes that several kernels share; ``kernel_rules.py`` has what each kernel asks beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from engine.routing.kv_dtype import KV_DTYPES, Codec, codec_of
from engine.routing.overrides import Overrides, variable_of
from engine.routing.plan import envelope
from engine.routing.request import SM70, Attention, Phase, Platform, RouteRequest, Workspace

HEAD_DIMS = (64, 128, 256)
STRIDE_ELEMENTS = 8
"""Kernels load 16 bytes of halves at once, so block and token strides are multiples of 8 elements."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition. ``override``: what a person can set to get past it; empty where nothing does."""

    name: str
    allowed: str
    holds: Callable[[RouteRequest], bool]
    seen: Callable[[RouteRequest], str]
    override: str = ""

    def allowed_under(self, overrides: Overrides) -> str:
        """What is allowed, with the thresholds in force filled in."""
        return self.allowed.format(**asdict(overrides)) if "{" in self.allowed else self.allowed


def on(field: str) -> str:
    """What a person sets to switch ``field`` of the overrides on."""
    return f"{variable_of(field)}=1"


FALLBACK = f"{on('allow_fallback')} (the plain twin)"


def switch(name: str, field: str, off: bool = False) -> Rule:
    """A rule that an on/off variable alone decides."""
    return Rule(
        name,
        f"{variable_of(field)}={0 if off else 1}",
        lambda x: bool(getattr(x.overrides, field)) is not off,
        lambda x: f"{variable_of(field)}={int(getattr(x.overrides, field))}",
        f"{variable_of(field)}={0 if off else 1}",
    )


def native(name: str, field: str) -> Rule:
    """A rule that asks what the loaded library advertises."""
    return Rule(
        name,
        "a native library that has it",
        lambda x: bool(getattr(x.native, field)),
        lambda _: f"a library without {field}",
        "rebuild: python -m native.build",
    )


def fits(name: str, workspace: Workspace) -> Rule:
    """A rule that holds until an allocation of ``workspace`` has failed."""
    return Rule(
        name,
        "a workspace that fits into memory",
        lambda x: workspace not in x.out_of_memory,
        lambda _: f"out of memory for the {workspace} workspace",
    )


def codec_is(*codecs: Codec) -> Callable[[RouteRequest], bool]:
    """Whether the cache of a request is stored by one of ``codecs``."""
    return lambda x: codec_of(x.kv_dtype) in codecs


def kv_seen(request: RouteRequest) -> str:
    """The cache's dtype, as a refusal words it."""
    return f"KV dtype {request.kv_dtype}"


# ---- level 0: whose card is it --------------------------------------------------------------------------------------


def _sm70_in_force(request: RouteRequest) -> bool:
    on_target = request.platform is Platform.CPU or request.capability == SM70
    return request.overrides.backend and on_target


def _platform_seen(request: RouteRequest) -> str:
    if request.platform is Platform.CPU:
        return "the CPU twin"
    if request.capability is None:
        return "a capability that was not asked"
    return f"capability {request.capability[0]}.{request.capability[1]}"


BACKEND_ON = switch("platform.backend", "backend")
CAPABILITY = Rule(
    "platform.capability",
    "7.0 exactly, or the CPU twin",
    lambda x: x.platform is Platform.CPU or x.capability == SM70,
    _platform_seen,
)
OTHER_PLATFORM = Rule(
    "platform.other",
    "a card or a switch that leaves the SM70 backend out",
    lambda x: not _sm70_in_force(x),
    _platform_seen,
    f"{variable_of('backend')}=0",
)

# ---- level 1: may this layer use the backend ------------------------------------------------------------------------

LAYER_RULES: tuple[Rule, ...] = (
    Rule(
        "layer.attention",
        "decoder attention",
        lambda x: x.attention is Attention.DECODER,
        lambda x: f"{x.attention} attention",
        FALLBACK,
    ),
    Rule("layer.alibi", "no ALiBi", lambda x: not x.alibi, lambda _: "ALiBi slopes", FALLBACK),
    Rule("layer.softcap", "no logit soft cap", lambda x: not x.softcap, lambda _: "a soft cap", FALLBACK),
    Rule("layer.sinks", "no attention sinks", lambda x: not x.sinks, lambda _: "attention sinks", FALLBACK),
    Rule("layer.kv_dtype", ", ".join(KV_DTYPES), lambda x: codec_of(x.kv_dtype) is not None, kv_seen, FALLBACK),
    Rule(
        "layer.head_dim",
        ", ".join(map(str, HEAD_DIMS)),
        lambda x: x.head_dim in HEAD_DIMS,
        lambda x: f"D {x.head_dim}",
        FALLBACK,
    ),
    Rule(
        "layer.native",
        "a native library with paged attention",
        lambda x: x.native.paged,
        lambda _: "a library without paged attention",
        f"a rebuild (python -m native.build) or {FALLBACK}",
    ),
    Rule(
        "layer.strides",
        f"block and token strides of a multiple of {STRIDE_ELEMENTS} elements",
        lambda x: x.stride_elements % STRIDE_ELEMENTS == 0,
        lambda x: f"strides of a multiple of {x.stride_elements} elements",
        FALLBACK,
    ),
)

# ---- what stops the call outright: no route and no fallback makes it right ------------------------------------------


def _small_q(request: RouteRequest) -> bool:
    return 1 < request.q_len <= request.overrides.smallq_max_q and request.causal


STOP_RULES: tuple[Rule, ...] = (
    Rule(
        "capture.persistent_rows",
        "persistent q-expanded metadata under capture",
        lambda x: not (x.capturing and _small_q(x)) or x.persistent_rows or x.phase is Phase.PROFILE,
        lambda _: "metadata that ends with this call",
        "building it with PersistentRows before the capture",
    ),
    Rule(
        "capacity.hint",
        "a length hint that covers the longest sequence",
        lambda x: envelope(x) >= x.kv_len,
        lambda x: f"hint {envelope(x)} for {x.kv_len} tokens",
        "a hint from the host's true lengths",
    ),
    Rule(
        "capacity.workspace",
        "a workspace capacity that covers the launch",
        lambda x: x.workspace_capacity is None or x.workspace_capacity >= envelope(x),
        lambda x: f"capacity {x.workspace_capacity} for {envelope(x)} tokens",
        "a larger workspace capacity",
    ),
)

HOST_READS = Rule(
    "capture.host_reads",
    "no capture: the plain twin reads lengths on the host, a graph would freeze them",
    lambda x: not x.capturing,
    lambda _: "a capture",
    "running this call eagerly",
)
FALLBACK_ALLOWED = Rule(
    "fallback.allowed",
    "a caller who allows it, or a draft model's layer",
    lambda x: x.overrides.allow_fallback or x.draft,
    lambda x: f"{variable_of('allow_fallback')}={int(x.overrides.allow_fallback)} and a target model's layer",
    on("allow_fallback"),
)

# ---- which family ---------------------------------------------------------------------------------------------------

PROFILING = Rule("phase.profile", "a sizing run", lambda x: x.phase is Phase.PROFILE, lambda x: f"phase {x.phase}")
ONE_ROW = Rule(
    "phase.one_row",
    "one query row per sequence",
    lambda x: x.phase is not Phase.PROFILE and x.q_len == 1,
    lambda x: f"phase {x.phase} with q {x.q_len}",
)
MANY_ROWS = Rule(
    "phase.many_rows",
    "more than one query row",
    lambda x: x.phase is not Phase.PROFILE and x.q_len > 1,
    lambda x: f"phase {x.phase} with q {x.q_len}",
)
DIAGNOSTIC_ASKED = switch("diagnostic.asked", "reference_prefill")
DIAGNOSTIC_OFF = switch("diagnostic.off", "reference_prefill", off=True)
CACHED_CONTEXT = Rule(
    "prefix.context",
    "a prefix in the cache, or tokens that only the cache holds",
    lambda x: x.prefix or x.missing_tokens,
    lambda _: "no prefix and all tokens at hand",
)
FRESH_CONTEXT = Rule(
    "prefix.none",
    "no prefix and all tokens at hand",
    lambda x: not (x.prefix or x.missing_tokens),
    lambda x: "a prefix" if x.prefix else "tokens that only the cache holds",
)

# ---- shapes that several routes share -------------------------------------------------------------------------------

CAUSAL = Rule("shape.causal", "causal", lambda x: x.causal, lambda _: "not causal")
NO_WINDOW_RULE = Rule("shape.window", "no window", lambda x: not x.windowed, lambda x: f"window {x.window}")
D256 = Rule("shape.head_dim", "D 256", lambda x: x.head_dim == 256, lambda x: f"D {x.head_dim}")
HEADS_6_1 = Rule(
    "shape.heads",
    "6 query heads on 1 KV head",
    lambda x: (x.q_heads, x.kv_heads) == (6, 1),
    lambda x: f"{x.q_heads} on {x.kv_heads}",
)
ONE_SEQUENCE = Rule("shape.one_sequence", "1 sequence", lambda x: x.num_seqs == 1, lambda x: f"{x.num_seqs} sequences")
NOT_CAPTURING = Rule("shape.eager", "no capture", lambda x: not x.capturing, lambda _: "a capture")
PLAIN_KV = Rule("shape.plain_kv", "unquantised KV", codec_is(Codec.PLAIN), kv_seen)
