"""Which rank this process is. Pure: what is known goes in, a number comes out.

A process group knows its own rank. The environment only says what somebody once set: workers that are started from one
shell all inherit the same ``RANK``, and four of them that believe it write over each other's files.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import InputError

RANK_VARIABLES = ("RANK", "LOCAL_RANK")
WORLD_SIZE_VARIABLE = "WORLD_SIZE"


def current_rank(group_rank: int | None, environ: Mapping[str, str]) -> int:
    """The rank of the process group where there is one; before that RANK, then LOCAL_RANK, then 0.

    Raises ``InputError`` for a variable that is no whole number.
    """
    if group_rank is not None:
        return group_rank
    for name in RANK_VARIABLES:
        if name in environ:
            return _number(name, environ[name])
    return 0


def started_ranks(asked: int, environ: Mapping[str, str]) -> bool:
    """Whether somebody (``torchrun``) has started this process as one of several ranks already.

    Raises ``InputError`` where they are another number than ``asked``.
    """
    if WORLD_SIZE_VARIABLE not in environ:
        return False
    seen = _number(WORLD_SIZE_VARIABLE, environ[WORLD_SIZE_VARIABLE])
    if seen != asked:
        raise InputError(
            f"{WORLD_SIZE_VARIABLE} is {seen} and --tp asks for {asked} ranks; allowed: the same number, or no "
            f"{WORLD_SIZE_VARIABLE} at all (--tp starts its own processes)"
        )
    return seen > 1


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r}; allowed: a whole number, 0 or more")
    return int(text)
