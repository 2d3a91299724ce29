"""CUDA graphs of forwards: captured at the second sight of a shape, replayed from then on."""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

import torch

# Shapes kept: every verify width of a sequence, and for several the sums of theirs that come most.
_MAX_GRAPHS = 96


@contextlib.contextmanager
def collector_held_off() -> Iterator[None]:
    """No cyclic garbage is collected inside: the graph of a dropped engine may be part of it, and a capture that meets
    the end of another graph is invalid.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ForwardGraphs:
    """Graphs by shape, on one device. What a graph reads and writes lives in buffers that outlive it.

    The first forward of a shape runs eagerly, which also loads and allocates what may not be loaded or allocated in a
    capture. The graphs share a pool: they run one after another, and nothing of one is read in another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: OrderedDict[Hashable, torch.cuda.CUDAGraph | None] = OrderedDict()
        self.captured = 0
        self.replayed = 0

    def knows(self, shape: Hashable) -> bool:
        """Whether `run` will capture or replay this shape."""
        return shape in self._graphs

    def run(self, shape: Hashable, forward: Callable[[], object]) -> bool:
        """``forward`` from its graph; captures it first where the shape was only noted, and tells whether it did."""
        graph = self._graphs[shape]
        self._graphs.move_to_end(shape)
        fresh = graph is None
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            with (
                collector_held_off(),
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                forward()
            self._graphs[shape] = graph
            self.captured += 1
        graph.replay()
        self.replayed += 1
        return fresh

    def note(self, shape: Hashable) -> None:
        """This shape has run eagerly."""
        self._graphs[shape] = None
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.popitem(last=False)
