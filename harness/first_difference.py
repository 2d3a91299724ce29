"""Where two values that should be equal first differ: how a refusal names what it saw. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_NAMES = ("scope", "node", "name", "key")  # what a record in a list calls itself
_SHOWN = 120  # characters of a value


def first_difference(stated: Any, found: Any) -> str:
    """The first place, in reading order, at which two records or JSON values differ, with both values.

    Lists that name their records (rows of a comparison) are told by those names. The empty string: they are equal.
    """
    return next(_differences(msgspec.to_builtins(stated), msgspec.to_builtins(found), ""), "")


def _differences(stated: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(stated, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*stated, *found]):
            yield from _differences(stated.get(key), found.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(stated, list | tuple) and isinstance(found, list | tuple):
        for index in range(max(len(stated), len(found))):
            one = stated[index] if index < len(stated) else None
            other = found[index] if index < len(found) else None
            yield from _differences(one, other, f"{place}[{_called(one or other, index)}]")
    elif type(stated) is not type(found) or stated != found:
        yield f"{place or 'the value'} is {_shown(stated)}, and {_shown(found)} follows"


def _called(record: Any, index: int) -> str:
    names = [str(record[name]) for name in _NAMES if record.get(name)] if isinstance(record, dict) else []
    return " ".join(names) or str(index)


def _shown(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
