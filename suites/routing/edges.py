"""What an edge of a rule is, and the requests that the edges start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.routing import Route, RouteRequest
from suites.routing.axes import call

E5M2, E4M3 = "fp8_e5m2", "fp8_e4m3"
R = Route


@dataclass(frozen=True, slots=True)
class Edge:
    """``served``: for each value of an axis, whether ``route`` serves ``build(value)``; if not, ``rule`` says why."""

    rule: str
    label: str
    route: Route
    build: Callable[[Any], RouteRequest]
    served: dict[Any, bool]


def decode(**axes: Any) -> RouteRequest:
    return call("decode", 1, axes.pop("kv_len", 4096), **axes)


def verify(**axes: Any) -> RouteRequest:
    return call("verify", axes.pop("q_len", 8), axes.pop("kv_len", 4096), **axes)


def prefill(**axes: Any) -> RouteRequest:
    return call("prefill", axes.pop("q_len", 512), axes.pop("kv_len", 2048), **axes)


def grouped(**axes: Any) -> RouteRequest:
    return verify(**({"kv_dtype": E5M2} | axes))


def smallq(**axes: Any) -> RouteRequest:
    return verify(**({"grouped_verify": False} | axes))


def gather(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 4096, "kv_len": 8192} | axes))


def gqa(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 8000, "kv_len": 16000} | axes))


def split(**axes: Any) -> RouteRequest:
    return prefill(**({"q_len": 4096, "kv_len": 32768} | axes))


def bridge(**axes: Any) -> RouteRequest:
    return prefill(**({"kv_dtype": E5M2} | axes))


def fresh(q_len: int = 1024, **axes: Any) -> RouteRequest:
    return prefill(q_len=q_len, kv_len=q_len, **axes)


ON_OFF = {True: True, False: False}
OFF_ON = {False: True, True: False}


def axis(build: Callable[..., RouteRequest], name: str, **fixed: Any) -> Callable[[Any], RouteRequest]:
    """Vary one axis of a kind of request."""
    return lambda value: build(**{**fixed, name: value})
