"""Memory for weights that live as long as the model: large pages, shared by many tensors.

A decode step reads every weight once, so it runs at the speed of memory; with 4 KiB pages the processor spends a third
of that time on address translation and its prefetchers stop at every page. Tensors of a small model are smaller than a
large page, so they are cut one after another from regions that the kernel is asked to back with large pages.
"""

from __future__ import annotations

import mmap
import threading

import torch

_LARGE_PAGE = 2 << 20
_REGION = 32 << 20
_ALIGNMENT = 64  # a cache line


class WeightMemory:
    """Hands out uint8 tensors from regions of large pages; a region is freed with the last tensor cut from it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, count: int) -> torch.Tensor:
        """A uint8 tensor of ``count`` bytes on the CPU, 64-byte aligned; its content is zero."""
        with self._lock:
            if self._used + count > len(self._region):
                self._region = _new_region(max(count, _REGION))
                self._used = 0
            start = self._used
            self._used += -(-count // _ALIGNMENT) * _ALIGNMENT
            return self._region[start : start + count]


def _new_region(count: int) -> torch.Tensor:
    size = -(-count // _LARGE_PAGE) * _LARGE_PAGE
    memory = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _LARGE_PAGE
    return whole[start : start + size]


weight_memory = WeightMemory()
