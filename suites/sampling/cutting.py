"""How the cases cut: rows go to a device, are planned and cut there, and what must hold of every cut is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.ops import sampling as ops
from suites.oracles import sampling as oracle
from suites.oracles.judge import assert_bits_equal
from suites.targets import Target, array

F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
FLAGS = int(ops.PlanColumn.FLAGS)
_FLAG_OF_FAULT = {
    None: ops.RowFlag(0),
    "nan": ops.RowFlag.NAN,
    "+inf": ops.RowFlag.POSITIVE_INFINITY,
    "nothing finite": ops.RowFlag.NOTHING_FINITE,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Per-row numbers of a batch; every tuple has one entry per row."""

    top_k: tuple[int, ...]
    top_p: tuple[float, ...]
    temperature: tuple[float, ...]

    @classmethod
    def same(cls, rows: int, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> Settings:
        return cls((top_k,) * rows, (top_p,) * rows, (temperature,) * rows)

    def row(self, index: int) -> Settings:
        return Settings((self.top_k[index],), (self.top_p[index],), (self.temperature[index],))

    def take(self, order: Sequence[int]) -> Settings:
        return Settings(
            tuple(self.top_k[i] for i in order),
            tuple(self.top_p[i] for i in order),
            tuple(self.temperature[i] for i in order),
        )

    def put(self, target: Target) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """top_k, top_p, temperature on the device, as the ops take them."""
        return (
            target.put(np.array(self.top_k), torch.int32),
            target.put(np.array(self.top_p), torch.float32),
            target.put(np.array(self.temperature), torch.float32),
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """What came back: the plan's bits, the logits after the cut, and which entries stayed."""

    plan: npt.NDArray[np.int32]
    logits: F32
    kept: Bools

    def ids(self, row: int = 0) -> frozenset[int]:
        return frozenset(np.flatnonzero(self.kept[row]).tolist())


def on_device(target: Target, logits: F32) -> torch.Tensor:
    """fp32 logits on the device (sampling is fp32 everywhere), a copy that may be cut in place."""
    return target.put(logits.copy(), torch.float32)


def cut(target: Target, logits: F32, settings: Settings, *, mask_value: float = -np.inf) -> Cut:
    """Plan and apply on a copy of ``logits``; asserts what holds of every cut: the plan only reads, apply works in
    place, a kept entry is the fp32 quotient by its temperature to the bit, rows that are greedy or at fault keep every
    bit."""
    on = on_device(target, logits)
    top_k, top_p, temperature = settings.put(target)
    plan = ops.sampling_plan(on, top_k, top_p, temperature)
    assert_bits_equal(array(on), logits, f"{target.name}: logits that sampling_plan only reads")
    out = ops.sampling_apply(on, plan, temperature, mask_value=mask_value)
    assert out.data_ptr() == on.data_ptr(), f"{target.name}: sampling_apply returned another tensor"
    after = array(on).copy()
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        quotient: F32 = logits / np.array(settings.temperature, dtype=np.float32)[:, None]
    plan_bits = array(plan).copy()
    untouched = plan_bits[:, FLAGS] != 0
    quotient[untouched] = logits[untouched]
    removed = (after.view(np.uint32) != quotient.view(np.uint32)) | np.isneginf(after)
    changed = np.where(removed, quotient, after)
    assert_bits_equal(changed, quotient, f"{target.name}: kept logits")
    masked = after[removed & ~np.isneginf(quotient)]
    assert (masked == np.float32(mask_value)).all(), f"{target.name}: a removed entry is not {mask_value}"
    return Cut(plan_bits, after, ~removed)


def assert_ids(seen: frozenset[int], expected: frozenset[int], what: str) -> None:
    """The same ids; a failure names those that are missing and those that are too many."""
    missing, extra = sorted(expected - seen), sorted(seen - expected)
    assert seen == expected, (
        f"{what}: kept {len(seen)}, expected {len(expected)}; missing ids {missing[:8]}, extra ids {extra[:8]}"
    )


def assert_within_band(result: Cut, index: int, logits: F32, settings: Settings, what: str) -> bool:
    """Row ``index`` of a cut keeps what the oracle keeps; where the edge is within the band of the integer weights, a
    neighbouring number of ids is right too, but never other ids. Returns whether the answer was the only right one."""
    top_k, top_p, temperature = (
        settings.top_k[index],
        float(np.float32(settings.top_p[index])),
        settings.temperature[index],
    )
    what = f"{what} row {index}: k {top_k}, p {top_p}, T {temperature}"
    row = logits[index] if temperature == 0 else oracle.after_temperature(logits[index], temperature)
    fault = oracle.fault(row)
    flags = _FLAG_OF_FAULT[fault] or (ops.RowFlag.GREEDY if temperature == 0 else ops.RowFlag(0))
    assert result.plan[index, FLAGS] == int(flags), f"{what}: flags {result.plan[index, FLAGS]}, expected {flags!r}"
    if flags:
        return True
    ranking = oracle.rank(row, top_k)
    low, high = ranking.keep(top_p, oracle.fixed_point_band(len(ranking.ids)))
    kept = result.ids(index)
    count = len(kept) if low <= len(kept) <= high else ranking.keep(top_p)[0]
    # A cut cannot show whether an entry that is -inf anyway stays.
    finite = frozenset(np.flatnonzero(np.isfinite(row)).tolist())
    assert_ids(kept, frozenset(ranking.ids[:count].tolist()) & finite, what)
    return low == high
