"""``python -m engine route --explain axis=value …`` and ``python -m engine routes --table``. No torch, no device.

Every axis of ``RouteRequest``, ``NativeCapabilities`` and ``Overrides`` is a ``name=value``; unset axes keep their
defaults, overrides the value that the environment gives them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from engine.errors import InputError
from engine.routing.kv_dtype import resolve_kv_dtype
from engine.routing.overrides import VARIABLES, Overrides, read_overrides
from engine.routing.request import (
    SM70,
    Attention,
    Capability,
    NativeCapabilities,
    Phase,
    Platform,
    RouteRequest,
    Workspace,
)
from engine.routing.table import decide
from engine.routing.wording import explain, policy_markdown


def _flag(text: str) -> bool:
    return {"0": False, "1": True, "false": False, "true": True}[text.lower()]


def _capability(text: str) -> Capability:
    major, minor = text.split(".")
    return int(major), int(minor)


def _window(text: str) -> tuple[int, int]:
    left, right = text.split(",")
    return int(left), int(right)


def _workspaces(text: str) -> tuple[Workspace, ...]:
    return tuple(Workspace(name) for name in text.split(",") if name)


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "platform": (Platform, "cuda or cpu"),
    "capability": (_capability, "MAJOR.MINOR, like 7.0"),
    "kv_asked": (str, "a KV dtype as typed"),
    "kv_dtype": (str, "a KV dtype as stored"),
    "phase": (Phase, ", ".join(Phase)),
    "attention": (Attention, ", ".join(Attention)),
    "scale": (float, "a number"),
    "window": (_window, "LEFT,RIGHT with -1 for no limit"),
    "out_of_memory": (_workspaces, f"a comma list of {', '.join(Workspace)}"),
}


def _axis_parser(name: str, default: object) -> tuple[Callable[[str], Any], str]:
    if name in _PARSERS:
        return _PARSERS[name]
    return (_flag, "0 or 1") if isinstance(default, bool) else (int, "a whole number")


def _parse(name: str, text: str, parser: Callable[[str], Any], allowed: str) -> Any:
    try:
        return parser(text)
    except (ValueError, KeyError) as error:
        raise InputError(f"{name}={text}: allowed is {allowed}") from error


def build_request(pairs: Sequence[str], environment: Overrides) -> RouteRequest:
    """The request that ``name=value`` pairs describe. Raises ``InputError`` naming the axis and what it may hold.

    ``prefix`` defaults to whether kv is longer than q; ``kv_asked`` and ``kv_dtype`` default to each other.
    """
    default = RouteRequest()
    records = ("native", "overrides")
    axes = {item.name: getattr(default, item.name) for item in fields(RouteRequest) if item.name not in records}
    native = {item.name: getattr(default.native, item.name) for item in fields(NativeCapabilities)}
    variables = {variable.field: variable for variable in VARIABLES}
    values: dict[str, Any] = {}
    libraries: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    known = ", ".join(sorted({*axes, *native, *variables}))
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} is no axis=value pair; axes: {known}")
        if name in axes:
            values[name] = _parse(name, text, *_axis_parser(name, axes[name]))
        elif name in native:
            libraries[name] = _parse(name, text, *_axis_parser(name, native[name]))
        elif name in variables:
            overrides[name] = _parse(name, text, variables[name].parse, variables[name].allowed)
        else:
            raise InputError(f"unknown axis {name!r}; axes: {known}")
    chosen = replace(environment, **overrides)
    if values.get("phase") not in (Phase.PREFILL, Phase.VERIFY):
        values.setdefault("q_len", 1)
    values.setdefault("q_len", 8)
    values.setdefault("kv_len", max(values["q_len"], 4096))
    values.setdefault("prefix", values["kv_len"] > values["q_len"])
    asked = values.setdefault("kv_asked", values.get("kv_dtype", "auto"))
    if "kv_dtype" not in values:
        platform = values.get("platform", Platform.CUDA)
        values["kv_dtype"] = resolve_kv_dtype(asked, platform, chosen.backend, lambda: values.get("capability") or SM70)
    try:
        return RouteRequest(**values, native=NativeCapabilities(**libraries), overrides=chosen)
    except ValueError as error:
        raise InputError(str(error)) from error


def route_main(arguments: Sequence[str]) -> int:
    """``route``: one decision, with its reasons. Returns 0, or 1 where the request is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m engine route",
        description="Which kernel serves an attention call, and why none before it.",
        epilog="exit codes: 0 a route, 1 refused, 2 an axis or a value that does not exist",
    )
    parser.add_argument("--explain", action="store_true", help="print the plan and the reasons too")
    parser.add_argument("axes", nargs="*", metavar="axis=value", help="e.g. kv_dtype=fp8_e4m3 phase=decode kv_len=1025")
    options = parser.parse_args(arguments)
    decision = decide(build_request(options.axes, read_overrides(os.environ)))
    if options.explain:
        print("\n".join(explain(decision)))
    elif decision.route is not None:
        print(decision.route)
    else:
        print(f"refused by {decision.refused_by}")
    return 0 if decision.route is not None else 1


def routes_main(arguments: Sequence[str]) -> int:
    """``routes --table``: the whole policy as Markdown, the same text that docs/routing.md holds."""
    parser = argparse.ArgumentParser(prog="python -m engine routes", description="The attention routing policy.")
    parser.add_argument("--table", action="store_true", required=True, help="print the policy as Markdown")
    parser.parse_args(arguments)
    print("\n".join(policy_markdown()))
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"route": route_main, "routes": routes_main}
"""First words of a command line that ask about the policy instead of the model."""
