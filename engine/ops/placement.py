"""Where an op over given tensors runs, asked of `engine.ops.dispatch` with what the library and the card say."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from engine.ops import dispatch
from engine.ops.dispatch import OLDEST_CARD
from native import ops_cuda
from native.cuda_bindings.faults import buffer as fault_record
from native.ops_cuda import raise_on_fault

__all__ = [
    "OLDEST_CARD",
    "fault_record",
    "kernels_on",
    "load_kernels",
    "on_cuda",
    "raise_on_fault",
    "upload_no_sync",
]


def on_cuda(op: str, tensor: torch.Tensor) -> bool:
    """Whether ``op`` over ``tensor`` runs in the native CUDA op; the native CPU op checks whatever else it is given.

    Raises:
        DispatchError: nothing may run it; the message holds every refusal.
    """
    device = tensor.device
    if device.type != ops_cuda.device_type():
        return False
    card = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return _runner(op, device.type, card, ops_cuda.device_type()) is dispatch.Runner.NATIVE_CUDA


def kernels_on() -> str:
    """Device type whose tensors the CUDA ops take: ``cuda``, or ``cpu`` while they are emulated."""
    return ops_cuda.device_type()


def load_kernels(device: torch.device) -> str:
    """Load every kernel on a CUDA ``device``, once; returns which code runs there. Not to be called in a capture."""
    return ops_cuda.load(device.index or 0)


def upload_no_sync(values: Sequence[object], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    """Numbers (nested lists of them) as a tensor on ``device``; a copy to a card waits for nothing."""
    if device is None or device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


@functools.cache
def _runner(op: str, device: str, card: tuple[int, int] | None, kernels_on: str) -> dispatch.Runner:
    situation = dispatch.Situation(op, device, ops_cuda.capabilities(), card, kernels_on)
    return dispatch.decide(situation).runner
