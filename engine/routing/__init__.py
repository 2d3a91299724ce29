"""Which kernel serves which attention request on SM70, as data. ``table.decide`` is the policy; no torch here.

``request`` describes a call, ``overrides`` what the environment asked for, ``kv_dtype`` the name of the cache's format,
``rules`` and ``table`` the policy, ``plan`` the partitions, ``capture`` the graph sizes, ``layout`` the cache's shape,
``wording`` all of it as text. ``engine.ops.attention_routes`` carries a decision out.
"""

from engine.routing.decision import Decision, PartitionPlan, Refusal, Route, RouteRefused
from engine.routing.kv_dtype import Codec, backend_priority, codec_of, resolve_kv_dtype
from engine.routing.overrides import DEFAULT_OVERRIDES, Overrides, overrides_record, read_overrides
from engine.routing.request import (
    NO_WINDOW,
    SM70,
    Attention,
    NativeCapabilities,
    Phase,
    Platform,
    RouteRequest,
    Workspace,
)
from engine.routing.table import TABLE, decide

__all__ = [
    "DEFAULT_OVERRIDES",
    "NO_WINDOW",
    "SM70",
    "TABLE",
    "Attention",
    "Codec",
    "Decision",
    "NativeCapabilities",
    "Overrides",
    "PartitionPlan",
    "Phase",
    "Platform",
    "Refusal",
    "Route",
    "RouteRefused",
    "RouteRequest",
    "Workspace",
    "backend_priority",
    "codec_of",
    "decide",
    "overrides_record",
    "read_overrides",
    "resolve_kv_dtype",
]
