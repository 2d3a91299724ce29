"""Lengths that decide, and how a KV length is cut into partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.routing.decision import PartitionPlan, Route
from engine.routing.kv_dtype import Codec, codec_of
from engine.routing.overrides import variable_of
from engine.routing.request import RouteRequest

DEFAULT_PARTITION = 256
LONG_PARTITION = 1024
LONG_FROM = 32768
"""From this length hint on, a partition is ``LONG_PARTITION`` tokens."""

SMALLEST_ALIGNED_PAGE = 256
PAGE_TILE = 16
FP16_SAWTOOTH_PAGE = 784
MTP5_PAGE = 1616
MTP5_QUERY_ROWS = 5

GROUPED_SPLITS = 80
GROUPED_TILE = 64
"""Grouped verify consumes KV in at most 80 splits of whole tiles: two of its 32-token steps, which is where the kernel
can be cut."""

DENSE_SPLITS = 3
DENSE_TILE = 64


@dataclass(frozen=True, slots=True)
class Hint:
    """The length that decides, and which input it came from."""

    tokens: int
    source: str


def sequence_hint(request: RouteRequest) -> Hint:
    """The length that decides a decode route.

    Lengths under capture are dummies, so what the graph was sized for decides: the static hint, else the workspace
    capacity. Outside a capture the host knows the longest sequence.
    """
    if request.capturing:
        if request.static_hint is not None:
            return Hint(request.static_hint, "static hint")
        if request.workspace_capacity is not None:
            return Hint(request.workspace_capacity, "workspace capacity")
    return Hint(request.max_seq, "longest sequence")


def smallq_hint(request: RouteRequest) -> Hint:
    """The length that decides between XQA and scalar rows of a small-q call: under capture the capacity counts too."""
    longest = Hint(request.max_seq, "longest sequence")
    if request.capturing and request.workspace_capacity is not None and request.workspace_capacity > longest.tokens:
        return Hint(request.workspace_capacity, "workspace capacity")
    return longest


def envelope(request: RouteRequest) -> int:
    """Tokens that a launch must cover: the longest sequence, or under capture whatever a replay may bring."""
    return max(sequence_hint(request).tokens, request.max_seq)


def partitions(tokens: int, size: int) -> int:
    """``ceil(tokens / size)``, at least 1. Pages and partitions are not powers of two, so this is a real division."""
    return max(1, -(-tokens // size))


@dataclass(frozen=True, slots=True)
class SizeRule:
    """One line of the partition table: the first that applies gives the size."""

    name: str
    when: str
    applies: Callable[[RouteRequest, Route], bool]
    size: Callable[[RouteRequest], int]
    gives: str


def _aligned_page(request: RouteRequest, route: Route) -> bool:
    """One row, G 6, D 256, on pages of whole 16-row tiles that hold at least one default partition."""
    return (
        request.overrides.aligned_page_partition
        and route in (Route.DECODE_XQA, Route.DECODE_SCALAR)
        and request.rows == 1
        and request.group == 6
        and request.head_dim == 256
        and request.page_size >= SMALLEST_ALIGNED_PAGE
        and request.page_size % PAGE_TILE == 0
    )


def _mtp5(request: RouteRequest, route: Route) -> bool:
    return (
        request.overrides.mtp5_dual_cta
        and route is Route.SMALLQ_XQA
        and codec_of(request.kv_dtype) is Codec.E5M2
        and request.page_size == MTP5_PAGE
        and request.q_len == MTP5_QUERY_ROWS
        and request.group == 6
    )


SIZE_RULES: tuple[SizeRule, ...] = (
    SizeRule(
        "explicit size",
        f"{variable_of('partition_size')} is set",
        lambda x, _: x.overrides.partition_size is not None,
        lambda x: x.overrides.partition_size or DEFAULT_PARTITION,
        "the variable's value",
    ),
    SizeRule(
        "context bucket",
        "the request carries a partition hint",
        lambda x, _: x.partition_hint is not None,
        lambda x: x.partition_hint or DEFAULT_PARTITION,
        "the hint",
    ),
    SizeRule(
        "MTP5 on two CTAs",
        f"small-q XQA, E5M2, page {MTP5_PAGE}, {MTP5_QUERY_ROWS} rows, G 6; {variable_of('mtp5_dual_cta')}",
        _mtp5,
        lambda x: x.overrides.mtp5_partition_size,
        f"{variable_of('mtp5_partition_size')} (1024)",
    ),
    SizeRule(
        "aligned page, E4M3",
        f"one row, G 6, D 256, page % 16 == 0 and >= {SMALLEST_ALIGNED_PAGE}; {variable_of('aligned_page_partition')}",
        lambda x, route: _aligned_page(x, route) and codec_of(x.kv_dtype) is Codec.E4M3,
        lambda _: 64,
        "64",
    ),
    SizeRule(
        "aligned page, E5M2",
        "as above",
        lambda x, route: _aligned_page(x, route) and codec_of(x.kv_dtype) is Codec.E5M2,
        lambda _: 256,
        "256",
    ),
    SizeRule(
        "aligned page, FP16",
        f"as above, page {FP16_SAWTOOTH_PAGE}",
        lambda x, route: (
            _aligned_page(x, route) and codec_of(x.kv_dtype) is Codec.PLAIN and x.page_size == FP16_SAWTOOTH_PAGE
        ),
        lambda _: 256,
        "256",
    ),
    SizeRule(
        "long",
        f"length hint >= {LONG_FROM}",
        lambda x, _: sequence_hint(x).tokens >= LONG_FROM,
        lambda _: LONG_PARTITION,
        str(LONG_PARTITION),
    ),
    SizeRule("default", "always", lambda _, __: True, lambda _: DEFAULT_PARTITION, str(DEFAULT_PARTITION)),
)
"""The partition table of the decode and small-q routes."""

_SPLIT_ROUTES = (Route.DECODE_XQA, Route.DECODE_SCALAR, Route.SMALLQ_XQA, Route.SMALLQ_SCALAR)


def partition_plan(request: RouteRequest, route: Route) -> PartitionPlan | None:
    """How ``route`` cuts the KV length; ``None`` where it does not."""
    if route in _SPLIT_ROUTES:
        rule = next(rule for rule in SIZE_RULES if rule.applies(request, route))
        return _covering(request, rule.size(request), rule.name)
    if route is Route.GROUPED_VERIFY:
        tiles = partitions(envelope(request), GROUPED_TILE)
        return _covering(request, partitions(tiles, GROUPED_SPLITS) * GROUPED_TILE, f"at most {GROUPED_SPLITS} splits")
    if route is Route.PREFILL_GATHER_SPLIT_KV:
        tiles = partitions(request.kv_len, DENSE_TILE)
        size = partitions(tiles, DENSE_SPLITS) * DENSE_TILE
        count = partitions(request.kv_len, size)
        return PartitionPlan(size, count, count, DENSE_SPLITS, f"{DENSE_SPLITS} splits of the dense keys")
    return None


def _covering(request: RouteRequest, size: int, reason: str) -> PartitionPlan:
    launch = partitions(envelope(request), size)
    capacity = envelope(request) if request.workspace_capacity is None else request.workspace_capacity
    return PartitionPlan(size, partitions(request.kv_len, size), launch, partitions(capacity, size), reason)
