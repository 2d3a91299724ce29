"""Requests for the routing cases, and the bridge to the oracle, which knows nothing of the engine."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any

from engine.routing import Decision, NativeCapabilities, Overrides, Phase, RouteRequest, decide
from suites.oracles import routing as oracle


def call(phase: str = "decode", q_len: int = 1, kv_len: int = 1024, **axes: Any) -> RouteRequest:
    """A legal request: ``prefix`` follows from the lengths, native and override fields are given by name."""
    native = {name: axes.pop(name) for name in _names(NativeCapabilities) if name in axes}
    env = {name: axes.pop(name) for name in _names(Overrides) if name in axes}
    axes.setdefault("prefix", kv_len > q_len)
    axes.setdefault("kv_asked", axes.get("kv_dtype", "auto"))
    return RouteRequest(
        phase=Phase(phase),
        q_len=q_len,
        kv_len=kv_len,
        native=NativeCapabilities(**native),
        overrides=Overrides(**env),
        **axes,
    )


def _names(record: type[NativeCapabilities] | type[Overrides]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(record))


def with_overrides(request: RouteRequest, **values: Any) -> RouteRequest:
    return replace(request, overrides=replace(request.overrides, **values))


def expected(request: RouteRequest) -> oracle.Expected:
    """What the oracle says about a request."""
    axes = {name: getattr(request, name) for name in _AXES}
    return oracle.expected(axes, _as_dict(request.native), _as_dict(request.overrides))


_AXES = tuple(item.name for item in fields(RouteRequest) if item.name not in ("native", "overrides"))


@lru_cache
def _as_dict(record: NativeCapabilities | Overrides) -> dict[str, Any]:
    return asdict(record)


def check(request: RouteRequest) -> Decision:
    """Decide, and compare route and partition size with the oracle; the message shows the whole request."""
    decision = decide(request)
    wanted = expected(request)
    route = None if decision.route is None else str(decision.route)
    assert route == wanted.route, f"policy says {route}, the oracle {wanted.route} for {request}"
    if wanted.partition is not None:
        assert decision.plan is not None, f"{route} cuts the keys, but has no plan for {request}"
        assert decision.plan.size == wanted.partition, (
            f"policy cuts into {decision.plan.size} ({decision.plan.reason}), the oracle into {wanted.partition} "
            f"for {request}"
        )
    return decision
