"""No copy of the logits and no wait for the device, on the ordinary path and on every rare one: measured."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.ops import sampling as ops
from engine.sampling.cutoffs import RowSettings, apply_cutoffs_inplace, plan_cutoffs
from suites.recording import Record
from suites.sampling import rows
from suites.sampling.cutting import on_device
from suites.targets import CPU, Target

pytestmark = pytest.mark.group("no copy, no sync")

ROWS, WIDTH = 16, 151936
# What an op may hold beside its plan for each row: the workspace of the GPU, the scratch of a CPU thread. The logits of
# a row are 594 KiB.
BYTES_A_ROW = 48 * 1024
# Pages that the process touches for its own reasons while we look.
RESIDENT_SLACK = 4 * 1024 * 1024

PATHS = {
    "ordinary": ("ordinary", 20, 0.95, 1.0),
    "temperature": ("ordinary", 20, 0.95, 0.7),
    "top-k only": ("ordinary", 20, 1.0, 1.0),
    "top-p only": ("ordinary", 0, 0.95, 1.0),
    "tied": ("half", 20, 0.95, 1.0),
    "all equal": ("equal", 20, 0.95, 1.0),
    "all equal, top-p only": ("equal", 0, 0.95, 1.0),
    "flat": ("flat", 0, 0.95, 1.0),
    "large k": ("ordinary", 5000, 0.95, 1.0),
    "off": ("ordinary", 0, 1.0, 1.0),
    "greedy": ("ordinary", 0, 1.0, 0.0),
}


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every torch operator that runs inside, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _settings(target: Target, path: str) -> tuple[torch.Tensor, RowSettings, torch.Tensor]:
    """Logits with a NaN row, a +inf row and an empty row among them, settings of every row, random bits."""
    kind, top_k, top_p, temperature = PATHS[path]
    logits = rows.logits(kind, ROWS, WIDTH)
    logits[3, 7], logits[5, 9], logits[7] = np.nan, np.inf, -np.inf
    return (
        on_device(target, logits),
        RowSettings(
            target.put(np.full(ROWS, temperature), torch.float32),
            target.put(np.full(ROWS, top_k), torch.int32),
            target.put(np.full(ROWS, top_p), torch.float32),
        ),
        target.put(np.arange(ROWS), torch.int64),
    )


def _sampled_step(logits: torch.Tensor, settings: RowSettings, bits: torch.Tensor) -> torch.Tensor:
    """What a decode step asks of the sampler, up to the ids on the device."""
    plan = plan_cutoffs(logits, settings)
    ids = ops.sampling_draw(logits, plan, bits, settings.temperature)
    apply_cutoffs_inplace(logits, settings)
    return ids


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _peak_resident_growth(work: Callable[[], object]) -> int:
    """By how many bytes the process grew at most while ``work`` ran, native allocations included."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # starts a new high-water mark
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


@pytest.mark.parametrize("path", PATHS)
def test_step_makes_only_small_tensors(native_library: str, path: str) -> None:
    """The torch operators of a step make a plan and ids and nothing else: none copies, reduces or asks a tensor. And
    the process does not grow by anything like the 9.7 MB of the logits, whoever would have allocated it."""
    logits, settings, bits = _settings(CPU, path)
    _sampled_step(logits.clone(), settings, bits)
    again = logits.clone()
    with Operators() as operators:
        _sampled_step(again, settings, bits)
    assert set(operators.seen) == {"aten.empty.memory_format"}, f"{path}: {sorted(set(operators.seen))}"
    assert len(operators.seen) <= 3, f"{path}: {len(operators.seen)} new tensors, a step needs two plans and its ids"
    grown = _peak_resident_growth(lambda: _sampled_step(logits, settings, bits))
    allowed = ROWS * BYTES_A_ROW + RESIDENT_SLACK
    assert grown <= allowed, f"{path}: grew by {grown} bytes, allowed {allowed}, the logits have {logits.nbytes}"


@pytest.mark.parametrize("path", PATHS)
def test_bound_step_makes_no_tensor_at_all(native_library: str, path: str) -> None:
    """Bound once, a step is two calls into the library: no torch operator runs, so nothing is made, copied or asked."""
    logits, settings, bits = _settings(CPU, path)
    asked = (settings.top_k, settings.top_p, settings.temperature)
    sample, cut = ops.bind_sampling_sample(logits, bits, *asked), ops.bind_sampling_cut(logits, *asked)
    with Operators() as operators:
        sample()
        cut()
    assert operators.seen == [], f"{path}: {sorted(set(operators.seen))}"


def test_output_is_the_input(targets: tuple[Target, ...]) -> None:
    for target in targets:
        logits, settings, _ = _settings(target, "ordinary")
        plan = plan_cutoffs(logits, settings)
        assert ops.sampling_apply(logits, plan, settings.temperature) is logits


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("path", PATHS)
def test_gpu_step_never_waits_and_allocates_a_constant_a_row(gpu: Target, record: Record, path: str) -> None:
    """With torch's sync detector set to raise, and the allocator's own peak."""
    logits, settings, bits = _settings(gpu, path)
    _sampled_step(logits.clone(), settings, bits)
    again = logits.clone()
    bound = ops.bind_sampling_cut(again, settings.top_k, settings.top_p, settings.temperature)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        torch.cuda.set_sync_debug_mode("error")
        bound()
        _sampled_step(logits, settings, bits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    grown = torch.cuda.max_memory_allocated() - before
    assert grown <= ROWS * BYTES_A_ROW, f"{path}: {grown} bytes beside the {logits.nbytes} of the logits"
    record.metric("extra bytes a row", grown / ROWS, "B", better="lower")


def test_extra_memory_does_not_follow_the_width(gpu: Target, record: Record) -> None:
    """Ten times the vocabulary, the same number of bytes."""
    grown = []
    for width in (32768, 327680):
        logits = gpu.put(rows.logits("ordinary", 4, width), torch.float32)
        settings = RowSettings(None, gpu.put(np.full(4, 20), torch.int32), gpu.put(np.full(4, 0.95), torch.float32))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        apply_cutoffs_inplace(logits, settings)
        grown.append(torch.cuda.max_memory_allocated() - before)
    assert grown[0] == grown[1], f"{grown[0]} bytes at 32768 columns, {grown[1]} at 327680"
