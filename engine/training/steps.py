"""One step of AdamW: eagerly, or as a CUDA graph for each shape of its inputs.

A step of these small models is thousands of small kernels; launched one by one from Python they take longer than they
run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from engine.model.graphs import collector_held_off

Inputs = tuple[torch.Tensor, ...]
Loss = Callable[..., torch.Tensor]

_LARGEST_NORM = 1.0


class EagerSteps:
    """Steps that minimise ``loss(*inputs)``; the sum of the losses stays on the device until it is asked for."""

    def __init__(self, parameters: Sequence[nn.Parameter], weight_decay: float, loss: Loss) -> None:
        """Matrices alone decay."""
        self._parameters, self._loss = list(parameters), loss
        device = self._parameters[0].device
        on_gpu = device.type == "cuda"
        # A graph reads its rate from the device.
        self._rate = torch.zeros((), device=device) if on_gpu else 0.0
        groups = [
            {"params": [one for one in self._parameters if one.dim() >= 2], "weight_decay": weight_decay},
            {"params": [one for one in self._parameters if one.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, lr=self._rate, betas=(0.9, 0.95), fused=on_gpu, capturable=on_gpu)
        self._total = torch.zeros((), device=device)

    def set_rate(self, rate: float) -> None:
        """Of the steps that follow."""
        if isinstance(self._rate, torch.Tensor):
            self._rate.fill_(rate)
        else:
            for group in self._optimiser.param_groups:
                group["lr"] = rate

    def read_total(self) -> float:
        """The sum of the losses since the last call; waits for the device."""
        total = float(self._total)
        self._total.zero_()
        return total

    def take(self, inputs: Inputs) -> None:
        """One step."""
        self._optimiser.zero_grad(set_to_none=True)
        loss = self._loss(*inputs)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, _LARGEST_NORM)
        self._optimiser.step()
        self._total += loss.detach()


class GraphSteps(EagerSteps):
    """The same on a GPU, replayed: the first step of a shape is taken eagerly and then captured."""

    def __init__(self, parameters: Sequence[nn.Parameter], weight_decay: float, loss: Loss) -> None:
        super().__init__(parameters, weight_decay, loss)
        self._graphs: dict[tuple[torch.Size, ...], tuple[Inputs, torch.cuda.CUDAGraph]] = {}
        # Nothing of a step outlives it, so that all graphs may share their memory.
        self._pool = torch.cuda.graph_pool_handle()

    def take(self, inputs: Inputs) -> None:
        """See `EagerSteps`."""
        shape = tuple(one.shape for one in inputs)
        if shape not in self._graphs:
            self._graphs[shape] = self._captured(tuple(one.clone() for one in inputs))
            return
        kept, graph = self._graphs[shape]
        for into, one in zip(kept, inputs, strict=True):
            into.copy_(one)
        graph.replay()

    def _captured(self, inputs: Inputs) -> tuple[Inputs, torch.cuda.CUDAGraph]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            super().take(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with collector_held_off(), torch.cuda.graph(graph, pool=self._pool):
            super().take(inputs)
        return inputs, graph
