"""Who runs an op, and why the others were refused. A pure decision: no torch, no library, only what it is told.

There is no fallback. Tensors on the CPU run the native CPU op, tensors on CUDA the native CUDA op; the plain torch twin
runs where its own function is called. Where the one that should run cannot, the decision is an error that says so of
each. Whether an op is new enough is asked when it is bound (`native.loader.require`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

OLDEST_CARD = (7, 0)


class Runner(StrEnum):
    """The implementations of an op."""

    NATIVE_CPU = "native-cpu"
    NATIVE_CUDA = "native-cuda"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the decision depends on.

    - ``op``: name of the op in `engine.ops.functional`.
    - ``device``: device type of its tensors, ``cpu`` or ``cuda``.
    - ``capabilities``: number of each native op in the loaded library (``rms_norm_cpu``, ``rms_norm_cuda``, ...).
    - ``card``: compute capability of the CUDA device, None on the CPU.
    - ``kernels_on``: device type whose tensors the CUDA ops take: ``cpu`` while they are emulated.
    """

    op: str
    device: str
    capabilities: Mapping[str, int]
    card: tuple[int, int] | None = None
    kernels_on: str = "cuda"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An implementation that does not run, and why."""

    runner: Runner
    reason: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The implementation that runs, and why each other one does not."""

    runner: Runner
    refused: tuple[Refusal, ...]


class DispatchError(RuntimeError):
    """Nothing may run this op here; the message holds every refusal."""


def decide(situation: Situation) -> Dispatch:
    """The implementation that runs the op.

    Raises:
        DispatchError: none may, with the reason of each.
    """
    reasons = {runner: reason_against(runner, situation) for runner in Runner}
    refused = tuple(Refusal(runner, reason) for runner, reason in reasons.items() if reason is not None)
    admitted = [runner for runner, reason in reasons.items() if reason is None]
    if not admitted:
        said = "; ".join(f"{refusal.runner}: {refusal.reason}" for refusal in refused)
        raise DispatchError(f"no implementation of {situation.op} may run on {situation.device}: {said}")
    return Dispatch(admitted[0], refused)


def reason_against(runner: Runner, situation: Situation) -> str | None:
    """Why ``runner`` may not run the op, None where it may. At most one runner may."""
    wanted = situation.kernels_on if runner is Runner.NATIVE_CUDA else _cpu_device(situation)
    if situation.device != wanted:
        return f"its tensors are on {situation.device}"
    native = f"{situation.op}_{'cuda' if runner is Runner.NATIVE_CUDA else 'cpu'}"
    if not situation.capabilities.get(native, 0):
        return f"the library has no {native}; rebuild: python -m native.build"
    if runner is Runner.NATIVE_CUDA and situation.card is not None and situation.card < OLDEST_CARD:
        have, least = (".".join(map(str, card)) for card in (situation.card, OLDEST_CARD))
        return f"the card has compute capability {have}, {least} is the oldest that runs these kernels"
    return None


def _cpu_device(situation: Situation) -> str:
    # While the CUDA ops are emulated they own the CPU tensors, and the CPU op has none.
    return "none" if situation.kernels_on == "cpu" else "cpu"
