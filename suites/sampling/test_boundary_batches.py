"""The boundary cases that need more than one row, or more than one call."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.ops import sampling as ops
from suites.oracles import sampling as oracle
from suites.oracles.judge import assert_bits_equal
from suites.sampling import rows
from suites.sampling.cutting import FLAGS, Settings, assert_ids, cut, on_device
from suites.targets import Target, array

pytestmark = pytest.mark.group("cutoffs")

F32 = rows.F32
INF = math.inf


def _shares(*shares: float) -> F32:
    """A row whose entries have these shares of mass, as exactly as fp32 logits can."""
    row: F32 = np.log(np.array([shares])).astype(np.float32)
    return row


@pytest.mark.parametrize("edge", [1, 2, 3], ids=["first edge", "second edge", "third edge"])
def test_25_p_at_an_edge(targets: tuple[Target, ...], edge: int) -> None:
    """Below and at the edge the entry after it goes, above it stays: one id of difference.

    "At" means within the band of the integer weights; the steps are that band wide, so they say which side they are on.
    """
    row = _shares(0.4, 0.3, 0.2, 0.1)
    ranking = oracle.rank(row[0], 0)
    share = ranking.reached[edge - 1] / ranking.total
    band = float(oracle.fixed_point_band(4)) + 2.0**-24  # 2**-24: p itself is an fp32 number
    for target in targets:
        below = cut(target, row, Settings.same(1, top_p=share - band)).ids()
        above = cut(target, row, Settings.same(1, top_p=share + band)).ids()
        assert_ids(below, frozenset(range(edge)), f"{target.name}: p below edge {edge}")
        assert_ids(above, frozenset(range(edge + 1)), f"{target.name}: p above edge {edge}")


def test_25_equality_removes_where_it_is_exact(targets: tuple[Target, ...]) -> None:
    """Equal entries have exact shares: p on the edge removes, the next fp32 number above it keeps one more."""
    row = np.zeros((1, 16), dtype=np.float32)
    for target in targets:
        for kept in (1, 4, 15):
            p = np.float32(kept / 16)
            on_it = cut(target, row, Settings.same(1, top_p=float(p))).ids()
            past = cut(target, row, Settings.same(1, top_p=float(np.nextafter(p, np.float32(1))))).ids()
            before = cut(target, row, Settings.same(1, top_p=float(np.nextafter(p, np.float32(0))))).ids()
            expected = frozenset(range(16 - kept, 16))
            assert_ids(on_it, expected, f"{target.name}: p at {kept}/16")
            assert_ids(before, expected, f"{target.name}: p just below {kept}/16")
            assert_ids(past, expected | {15 - kept}, f"{target.name}: p just above {kept}/16")


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ([-INF] * 5, ops.RowFlag.NOTHING_FINITE),
        ([1, math.nan, 3, 2, 0], ops.RowFlag.NAN),
        ([1, -math.nan, 3, 2, 0], ops.RowFlag.NAN),
        ([1, INF, 3, 2, 0], ops.RowFlag.POSITIVE_INFINITY),
        ([1, INF, math.nan, 2, 0], ops.RowFlag.NAN),
    ],
    ids=["28 nothing finite", "29 NaN", "29 negative NaN", "29 +inf", "29 NaN and +inf"],
)
@pytest.mark.parametrize("settings", ["plain", "top-k", "top-p", "both", "greedy"])
def test_bad_row_is_flagged_alone(
    targets: tuple[Target, ...], row: list[float], flag: ops.RowFlag, settings: str
) -> None:
    """The row is flagged, left as it was and never sampled; its neighbours come out as if they were alone."""
    top_k, top_p, temperature = {
        "plain": (0, 1.0, 1.0),
        "top-k": (2, 1.0, 1.0),
        "top-p": (0, 0.5, 2.0),
        "both": (3, 0.9, 1.0),
        "greedy": (3, 0.9, 0.0),
    }[settings]
    good = np.array([4, 1, 3, 2, 2.5], dtype=np.float32)
    batch = np.stack([good, np.array(row, dtype=np.float32), good[::-1]])
    each = Settings.same(3, top_k, top_p, temperature)
    bits = np.array([0, -1, 1 << 62], dtype=np.int64)
    for target in targets:
        result = cut(target, batch, each)
        assert result.plan[:, FLAGS].tolist() == [result.plan[0, FLAGS], int(flag), result.plan[0, FLAGS]]
        assert result.logits[1].tobytes() == batch[1].tobytes()
        k, p, t = each.put(target)
        on = on_device(target, batch)
        drawn = ops.sampling_draw(on, ops.sampling_plan(on, k, p, t), target.put(bits), t)
        assert int(drawn[1]) == -1
        for index in (0, 2):
            alone = cut(target, batch[index : index + 1], each.row(index))
            assert_bits_equal(result.logits[index], alone.logits[0], f"{target.name}: neighbour {index}")
            one = slice(index, index + 1)
            on_alone, t_alone = on_device(target, batch[one]), each.row(index).put(target)[2]
            again = ops.sampling_draw(on_alone, target.put(alone.plan), target.put(bits[one]), t_alone)
            assert int(drawn[index]) == int(again[0])


@pytest.mark.parametrize(
    ("top_p", "temperature"),
    [(0.0, 1.0), (-0.5, 1.0), (1.5, 1.0), (math.nan, 1.0), (0.9, -1.0), (0.9, math.nan), (0.9, INF)],
)
def test_bad_parameter_is_flagged_alone(targets: tuple[Target, ...], top_p: float, temperature: float) -> None:
    """A batch on a device cannot raise for one row; the row says so, and is not cut."""
    batch = np.array([[1, 2, 3], [1, 2, 3]], dtype=np.float32)
    settings = Settings((2, 2), (0.9, top_p), (1.0, temperature))
    for target in targets:
        on = on_device(target, batch)
        k, p, t = settings.put(target)
        plan = array(ops.sampling_cut(on, k, p, t))
        assert plan[:, FLAGS].tolist() == [0, int(ops.RowFlag.BAD_PARAMETER)]
        assert array(on)[1].tobytes() == batch[1].tobytes()


@pytest.mark.parametrize("width", [1, 2, 127, 128, 129, 255, 257, 32767, 32768, 32769, 151936, 154880, 248320])
def test_38_tails(targets: tuple[Target, ...], width: int) -> None:
    """Ties at the last ids, and the maximum at the very last: what a kernel that forgets its tail loses."""
    row = np.zeros((2, width), dtype=np.float32)
    row[0, -1] = 3
    row[1, -(width // 2 + 1) :] = 1
    tied = width // 2 + 1
    settings = Settings((1, 1), (1.0, 0.5), (1.0, 1.0))
    for target in targets:
        result = cut(target, row, settings)
        assert_ids(result.ids(0), frozenset({width - 1}), f"{target.name}: V {width}, last id")
        half = frozenset(range(width - (tied + 1) // 2, width))
        assert_ids(result.ids(1), half, f"{target.name}: V {width}, upper half of {tied} ties")


@pytest.mark.parametrize("width", [32768, 151936])
def test_39_mixed_batch_equals_solo(targets: tuple[Target, ...], width: int) -> None:
    """Each row of a batch with k in {1 .. V} and p in {.6 .. 1} is the row alone, to the bit."""
    batch = np.concatenate([rows.logits("ordinary", 6, width), rows.logits("half", 6, width)])
    settings = rows.mixed_settings(12, width, seed=39)
    for target in targets:
        together = cut(target, batch, settings)
        for index in range(12):
            alone = cut(target, batch[index : index + 1], settings.row(index))
            assert_bits_equal(together.plan[index], alone.plan[0], f"{target.name}: plan of row {index}")
            assert_bits_equal(together.logits[index], alone.logits[0], f"{target.name}: row {index}")


def test_40_disabled_rows_in_a_mixed_batch(targets: tuple[Target, ...]) -> None:
    batch = rows.logits("ordinary", 4, 4097)
    settings = Settings((4097, 20, 0, 20), (1.0, 0.9, 1.0, 1.0), (1.0,) * 4)
    for target in targets:
        result = cut(target, batch, settings)
        for index in (0, 2):
            assert result.logits[index].tobytes() == batch[index].tobytes()


def test_41_greedy_row_in_a_random_batch(targets: tuple[Target, ...]) -> None:
    """T = 0: the lowest id of the maximum, whatever k, p and the random bits are."""
    batch = np.zeros((3, 500), dtype=np.float32)
    batch[:, [77, 300, 499]] = 2.0
    settings = Settings((5, 1, 20), (0.9, 0.01, 0.9), (1.0, 0.0, 0.7))
    for target in targets:
        on = on_device(target, batch)
        k, p, t = settings.put(target)
        plan = ops.sampling_plan(on, k, p, t)
        for bits in (0, -1, 1 << 61):
            drawn = ops.sampling_draw(on, plan, target.put(np.full(3, bits, dtype=np.int64)), t)
            assert int(drawn[1]) == 77
        assert cut(target, batch, settings).logits[1].tobytes() == batch[1].tobytes()


def test_42_padding_is_neither_read_nor_written(targets: tuple[Target, ...]) -> None:
    """Rows apart, and vocabulary padding beside them: the padding would win if it were read."""
    width, stride, offset = 1003, 1024, 5
    logits = rows.logits("half", 6, width)
    settings = rows.mixed_settings(6, width, seed=42)
    for target in targets:
        wide = target.put(np.full((6, stride), 1e9), torch.float32)
        view = wide[:, offset : offset + width]
        view.copy_(on_device(target, logits))
        k, p, t = settings.put(target)
        plan = ops.sampling_cut(view, k, p, t)
        expected = cut(target, logits, settings)
        assert_bits_equal(array(plan), expected.plan, f"{target.name}: plan of strided rows")
        assert_bits_equal(array(view.contiguous()), expected.logits, f"{target.name}: strided rows")
        padding = array(wide).copy()
        padding[:, offset : offset + width] = 1e9
        assert (padding == np.float32(1e9)).all(), f"{target.name}: padding was written"


def test_45_mask_value(targets: tuple[Target, ...]) -> None:
    """Another mask value replaces the removed entries only; the kept ones are the same bits."""
    batch = rows.logits("half", 3, 2000)
    settings = Settings((20, 0, 7), (0.9, 0.5, 1.0), (1.0, 0.7, 2.0))
    for target in targets:
        plain = cut(target, batch, settings)
        other = cut(target, batch, settings, mask_value=-1e9)
        assert_bits_equal(other.plan, plain.plan, f"{target.name}: plan")
        assert_bits_equal(
            other.logits, np.where(plain.kept, plain.logits, np.float32(-1e9)), f"{target.name}: mask value -1e9"
        )


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_46_temperature_moves_the_edge_of_ties(targets: tuple[Target, ...], temperature: float) -> None:
    """Ties stay ties after the division; how many of them stay follows from the row's own temperature."""
    row = np.array([[2, 2, 2, 1, 1, 1, 1, 0, 0, 0]], dtype=np.float32)
    settings = Settings.same(1, 7, 0.8, temperature)
    ranking = oracle.rank(oracle.after_temperature(row[0], temperature), 7)
    assert ranking.edge_margin(float(np.float32(0.8))) > 1e-3
    for target in targets:
        assert_ids(cut(target, row, settings).ids(), ranking.kept_ids(float(np.float32(0.8))), f"T {temperature}")


def test_47_division_makes_ties(targets: tuple[Target, ...]) -> None:
    """Neighbouring denormals fall together when they are divided: the quotients define the tie, not the logits."""
    tiny = np.float32(1e-45)  # the smallest positive number
    row = np.array([[4 * tiny, 3 * tiny, tiny, -1]], dtype=np.float32)
    assert len(set(row[0].tolist())) == 4
    quotient = oracle.after_temperature(row[0], 4.0)
    assert quotient[0] == quotient[1] == tiny
    assert quotient[2] == 0
    for target in targets:
        assert_ids(cut(target, row, Settings.same(1, 1)).ids(), frozenset({0}), "before the division")
        assert_ids(cut(target, row, Settings.same(1, 1, 1.0, 4.0)).ids(), frozenset({0, 1}), "after it")
        assert_ids(cut(target, row, Settings.same(1, 1, 0.5, 4.0)).ids(), frozenset({1}), "and the tie splits")


@pytest.mark.parametrize("kind", rows.KINDS)
def test_48_six_runs(targets: tuple[Target, ...], kind: str) -> None:
    batch = rows.logits(kind, 8, 32768)
    settings = rows.mixed_settings(8, 32768, seed=48)
    for target in targets:
        first = cut(target, batch, settings)
        for run in range(1, 6):
            again = cut(target, batch, settings)
            assert_bits_equal(again.plan, first.plan, f"{target.name}: plan of run {run}")
            assert_bits_equal(again.logits, first.logits, f"{target.name}: logits of run {run}")
