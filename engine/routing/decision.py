"""What a routing decision is: a route with its partition plan, or the reasons why there is none. Frozen, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.routing.request import RouteRequest


class Route(StrEnum):
    """Every way an attention call can be served. The value is the name of the counter that its execution increments."""

    PROFILE_ZERO = "profile_zero"
    DIAGNOSTIC_REFERENCE = "diagnostic_reference"
    GROUPED_VERIFY = "grouped_verify"
    SMALLQ_XQA = "smallq_xqa"
    SMALLQ_SCALAR = "smallq_scalar"
    PREFILL_GATHER_GQA = "prefill_gather_gqa"
    PREFILL_GATHER_SPLIT_KV = "prefill_gather_split_kv"
    PREFILL_GATHER_EXACT = "prefill_gather_exact"
    PREFILL_BRIDGE_DENSE = "prefill_bridge_dense"
    PREFILL_BRIDGE_PAGED = "prefill_bridge_paged"
    PREFILL_PAGED = "prefill_paged"
    PREFILL_DENSE_EXACT = "prefill_dense_exact"
    PREFILL_DENSE = "prefill_dense"
    DECODE_XQA = "decode_xqa"
    DECODE_SCALAR = "decode_scalar"
    PLATFORM_DEFAULT = "platform_default"
    DECLARED_FALLBACK = "declared_fallback"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How the KV length is cut: ``size`` tokens a partition, in ascending order.

    ``actual``: partitions that the present length needs; ``launch``: partitions the kernel is started with (its grid,
    fixed in a graph); ``workspace``: partitions that the partials' buffers hold. Always actual <= launch <= workspace.
    """

    size: int
    actual: int
    launch: int
    workspace: int
    reason: str

    def __post_init__(self) -> None:
        if not 1 <= self.actual <= self.launch <= self.workspace:
            raise ValueError(
                f"partition plan with {self.actual} actual, {self.launch} launched and {self.workspace} workspace "
                f"partitions of {self.size}: each must cover the one before, or the longest sequence is cut short"
            )

    def check_replay(self, kv_len: int) -> None:
        """Raise ``RuntimeError`` where a live length is longer than what was launched for; called before a replay."""
        if kv_len > self.launch * self.size:
            raise RuntimeError(
                f"a sequence of {kv_len} tokens does not fit into {self.launch} partitions of {self.size} "
                f"({self.launch * self.size} tokens); capture with a larger static hint or run this step eagerly"
            )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a route was not taken: the first of its rules that did not hold. ``override`` would allow it; empty: none."""

    route: Route
    rule: str
    seen: str
    allowed: str
    override: str

    def __str__(self) -> str:
        text = f"{self.rule}: saw {self.seen}; allowed: {self.allowed}"
        return f"{text}; {self.override} would allow it" if self.override else text


class RouteRefused(RuntimeError):
    """No route, and none silently taken instead. Carries the decision."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"attention is refused by {decision.refused_by}")
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request. Exactly one of ``route`` and ``refused_by`` is there.

    ``refusals``: every route that stands before the chosen one in the table (all, where there is none), with its
    reason. ``warnings``: what the caller must say aloud once.
    """

    request: RouteRequest
    route: Route | None
    plan: PartitionPlan | None
    refusals: tuple[Refusal, ...]
    refused_by: Refusal | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.route is None) == (self.refused_by is None):
            raise ValueError(f"a decision has a route or a refusal: {self.route} and {self.refused_by}")

    def require(self) -> Route:
        """The route; raises ``RouteRefused`` naming the rule, what was seen, is allowed, and would allow it."""
        if self.route is None:
            raise RouteRefused(self)
        return self.route
