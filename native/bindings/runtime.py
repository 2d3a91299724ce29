"""Threads and instruction set of the native CPU ops. Neither changes a bit of any result."""

from __future__ import annotations

from native.loader import require

ISAS = ("portable", "avx2", "avx512")


def set_threads(count: int) -> None:
    """Use ``count`` threads (the caller's included) from the next op on.

    Raises:
        ValueError: not in 1..256.
    """
    if not 1 <= count <= 256:
        raise ValueError(f"threads: saw {count}, allowed 1..256")
    require("runtime", 1).sm70_set_threads(count)


def threads() -> int:
    """Threads the next op uses. At start: the number of CPUs this process may run on."""
    return int(require("runtime", 1).sm70_threads())


def best_isa() -> str:
    """The widest instruction set this machine and library have: one of `ISAS`."""
    return ISAS[int(require("runtime", 1).sm70_best_isa())]


def isa() -> str:
    """The instruction set in use."""
    return ISAS[int(require("runtime", 1).sm70_isa())]


def set_isa(name: str) -> None:
    """Use the instruction set ``name``, for tests that compare bits.

    Raises:
        ValueError: unknown, or wider than this machine has.
    """
    if name not in ISAS:
        raise ValueError(f"isa: saw {name!r}, allowed {', '.join(ISAS)}")
    if ISAS.index(name) > ISAS.index(best_isa()):
        raise ValueError(f"isa: saw {name!r}, this machine has no more than {best_isa()!r}")
    require("runtime", 1).sm70_set_isa(ISAS.index(name))
