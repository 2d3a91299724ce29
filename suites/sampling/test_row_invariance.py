"""A row's result is its own: not the batch's, the row index's, the stride's, the thread's or the instruction set's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.ops import sampling as ops
from engine.ops import sampling_reference as twin
from native import ops as native_ops
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.sampling import rows
from suites.sampling.cutting import Settings, on_device
from suites.targets import CPU, Target, array

pytestmark = pytest.mark.group("row invariance")

Answer = dict[str, npt.NDArray[Any]]
WIDTH = 32769


def answer(target: Target, logits: torch.Tensor, settings: Settings, bits: npt.NDArray[np.int64]) -> Answer:
    """Everything the ops say about a batch: plan, cut logits, drawn ids, and the weights of those ids.

    On the way it sees to it that an op in one call, and one that is bound first, says what its parts say.
    """
    k, p, t = settings.put(target)
    numbers = target.put(bits)
    plan = ops.sampling_plan(logits, k, p, t)
    drawn = ops.sampling_draw(logits, plan, numbers, t)
    weights = ops.sampling_weigh(logits, plan, drawn.clamp(min=0), t)
    cut = ops.sampling_apply(logits.clone(), plan, t)
    one, other = logits.clone(), logits.clone()
    plan_of_cut, plan_of_bound = ops.sampling_cut(one, k, p, t), ops.bind_sampling_cut(other, k, p, t)()
    plan_of_sample, sampled = ops.sampling_sample(logits, numbers, k, p, t)
    pairs = {
        "sampling_cut": (one, cut),
        "plan of sampling_cut": (plan_of_cut, plan),
        "bound cut": (other, cut),
        "plan of the bound cut": (plan_of_bound, plan),
        "sampling_sample": (sampled, drawn),
        "plan of sampling_sample": (plan_of_sample, plan),
        "bound sample": (ops.bind_sampling_sample(logits, numbers, k, p, t)(), drawn),
    }
    for name, (seen, expected) in pairs.items():
        assert_bits_equal(array(seen), array(expected), f"{target.name}: {name}")
    return {"plan": array(plan), "cut logits": array(cut), "drawn ids": array(drawn), "weights": array(weights)}


def assert_same(seen: Answer, expected: Answer, what: str) -> None:
    for name, part in expected.items():
        assert_bits_equal(seen[name], part, f"{what}: {name}")


def row_of(batch: Answer, index: int) -> Answer:
    return {name: part[index : index + 1] for name, part in batch.items()}


def draw_bits(count: int, seed: int) -> npt.NDArray[np.int64]:
    return rows.generator(count, seed).integers(-(2**63), 2**63 - 1, size=count, endpoint=True)


def mixed_rows(count: int, width: int = WIDTH) -> npt.NDArray[np.float32]:
    kinds = [rows.KINDS[i % len(rows.KINDS)] for i in range(count)]
    return np.concatenate([rows.logits(kind, 1, width, seed=i) for i, kind in enumerate(kinds)])


@pytest.mark.parametrize("batch", rows.BATCHES)
def test_batch_and_row_index(targets: tuple[Target, ...], record: Record, batch: int) -> None:
    """Case 43: the same row alone, first, in the middle and last in batches up to 64."""
    logits, settings, bits = mixed_rows(7), rows.mixed_settings(7, WIDTH, seed=43), draw_bits(7, 43)
    for target in targets:
        alone = [
            answer(target, on_device(target, logits[i : i + 1]), settings.row(i), bits[i : i + 1]) for i in range(7)
        ]
        for turn in range(7 if batch < 33 else 2):
            order = [(turn + i) % 7 for i in range(batch)]
            together = answer(target, on_device(target, logits[order]), settings.take(order), bits[order])
            for index, source in enumerate(order):
                assert_same(
                    row_of(together, index), alone[source], f"{target.name}: row {source} at {index} of {batch}"
                )
    record.metric("rows compared", batch * (7 if batch < 33 else 2), "rows", better="higher")


@pytest.mark.parametrize("gap", [0, 1, 3, 64])
def test_stride_and_alignment(targets: tuple[Target, ...], gap: int) -> None:
    """Rows apart by any gap, from any address that holds a float."""
    logits, settings, bits = mixed_rows(7), rows.mixed_settings(7, WIDTH, seed=5), draw_bits(7, 5)
    for target in targets:
        expected = answer(target, on_device(target, logits), settings, bits)
        wide = target.put(np.full((7, WIDTH + gap + 3), np.nan), torch.float32)
        for offset in range(4):
            view = wide[:, offset : offset + WIDTH] if gap + 3 >= offset else wide[:, :WIDTH]
            view.copy_(on_device(target, logits))
            assert_same(answer(target, view, settings, bits), expected, f"{target.name}: gap {gap}, offset {offset}")
            wide.fill_(float("nan"))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = native_ops.threads()
    native_ops.set_threads(count)
    try:
        yield
    finally:
        native_ops.set_threads(before)


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    before = native_ops.isa()
    native_ops.set_isa(name)
    try:
        yield
    finally:
        native_ops.set_isa(before)


def _cpu_answer(kind: str) -> Answer:
    logits, settings, bits = rows.logits(kind, 5, WIDTH), rows.mixed_settings(5, WIDTH, seed=9), draw_bits(5, 9)
    return answer(CPU, on_device(CPU, logits), settings, bits)


@pytest.mark.parametrize("kind", rows.KINDS)
def test_threads(native_library: str, kind: str) -> None:
    with threads(1):
        expected = _cpu_answer(kind)
    for count in (2, 3, 5):
        with threads(count):
            assert_same(_cpu_answer(kind), expected, f"{count} threads")


@pytest.mark.parametrize("kind", rows.KINDS)
def test_instruction_sets(native_library: str, kind: str) -> None:
    """Every instruction set of this machine gives the portable bits."""
    names = ("portable", "avx2", "avx512")
    available = names[: names.index(native_ops.best_isa()) + 1]
    with instruction_set("portable"):
        expected = _cpu_answer(kind)
    for name in available[1:]:
        with instruction_set(name):
            assert_same(_cpu_answer(kind), expected, name)


@pytest.mark.parametrize("kind", rows.KINDS)
def test_twin(targets: tuple[Target, ...], kind: str) -> None:
    """The plain torch twin, the CPU and the GPU give one answer to the bit."""
    width = 5003
    logits, settings, bits = rows.logits(kind, 6, width), rows.mixed_settings(6, width, seed=2), draw_bits(6, 2)
    on = torch.from_numpy(logits.copy())
    k, p, t = settings.put(CPU)
    plan = twin.sampling_plan(on, k, p, t)
    drawn = twin.sampling_draw(on, plan, torch.from_numpy(bits), t)
    weights = twin.sampling_weigh(on, plan, drawn.clamp(min=0), t)
    masses = twin.sampling_masses(on, plan, t)
    cut = twin.sampling_apply(on.clone(), plan, t)
    expected = {"plan": array(plan), "cut logits": array(cut), "drawn ids": array(drawn), "weights": array(weights)}
    for target in targets:
        mine = on_device(target, logits)
        assert_same(answer(target, mine, settings, bits), expected, f"{target.name} against the twin")
        settings_on = settings.put(target)
        seen = ops.sampling_masses(mine, ops.sampling_plan(mine, *settings_on), settings_on[2])
        assert_bits_equal(array(seen), array(masses), f"{target.name}: masses")


def test_excluded_token_is_never_drawn(targets: tuple[Target, ...]) -> None:
    """The residual of a point-mass proposal: the excluded id has no chance, the others keep their shares."""
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], dtype=np.float32))
    for target in targets:
        on = on_device(target, logits)
        plan = ops.sampling_plan(on)
        seen = set()
        for step in range(64):
            bits = target.put(np.array([((2 * step + 1) << 57) - (1 << 63)], dtype=np.int64))
            without = target.put(np.array([0], dtype=np.int64))
            seen.add(int(ops.sampling_draw(on, plan, bits, excluded=without)))
        assert seen == {1, 2, 3}, f"{target.name}: drew {sorted(seen)}"
        only = on_device(target, np.array([[1.0, -np.inf]], dtype=np.float32))
        nothing = ops.sampling_draw(only, ops.sampling_plan(only), bits, excluded=without)
        assert int(nothing) == -1, f"{target.name}: drew from an empty residual"
