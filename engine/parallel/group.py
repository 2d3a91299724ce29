"""The ranks that share a model: who this one is, and the two things that they say to each other.

A group is passed in, never looked up. `Alone` is the group of one rank and needs no process group; `ProcessGroup` is
one of ``torch.distributed``, gloo for CPU tensors and NCCL for CUDA tensors.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

# One release deprecates the older name, the one before does not have the newer.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Group(Protocol):
    """One rank's view of its group. Every rank calls the same methods with the same shapes in the same order."""

    @property
    def rank(self) -> int:
        """Who this is, 0 to size - 1."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_gather(self, out: torch.Tensor, local: torch.Tensor) -> None:
        """``out[r]`` becomes rank r's ``local``: ``[size, *local.shape]``, both contiguous. Moves bytes, adds nothing.

        On CUDA it is enqueued on the current stream, without a wait, and may be captured in a graph.
        """

    def broadcast(self, tensor: torch.Tensor) -> None:
        """``tensor`` becomes rank 0's, in place."""


class Alone:
    """The group of a process that shares its model with nobody."""

    rank = 0
    size = 1

    def all_gather(self, out: torch.Tensor, local: torch.Tensor) -> None:
        """See `Group`."""
        out[0].copy_(local)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Group`: rank 0's tensor is this one."""


class ProcessGroup:
    """A group of ``torch.distributed``."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_gather(self, out: torch.Tensor, local: torch.Tensor) -> None:
        """See `Group`. Raises ``ValueError`` for an ``out`` of another shape."""
        if out.shape != (self.size, *local.shape):
            raise ValueError(f"out: saw {tuple(out.shape)}, need {(self.size, *local.shape)}")
        _all_gather(out.flatten(0, 1) if local.dim() else out, local, group=self._group)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Group`."""
        dist.broadcast(tensor, dist.get_global_rank(self._group, 0), group=self._group)
