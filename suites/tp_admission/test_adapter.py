"""From an admission row to a product: padded is unpadded, the padding is cut off first, scales are one or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.errors import InputError
from engine.linear.adapter import (
    AdaptedLinear,
    Int4Matrix,
    KernelCounters,
    adapt_int4,
    adapt_nvfp4,
    finished,
    padded_rows,
)
from engine.linear.admission import SMALL_M_ROWS, Admitted, LinearKernel, Projection, Split, admit
from engine.linear.fold import one_global_scale
from engine.linear.nvfp4 import Nvfp4Matrix
from engine.model.graphs import collector_held_off
from engine.ops import functional
from suites.oracles import int4
from suites.oracles.arrays import F64
from suites.oracles.judge import assert_bits_equal, relative_l2
from suites.recording import Record
from suites.targets import Target, array, f64
from suites.tp_admission.packed_weights import Nvfp4Weights

K = 512
# What the CPU's fixed-point inputs, or float16 in and out on a card, cost at most beside an exact W4A16 product.
CLOSE = 5e-4


def _admitted(n: int, k: int = K, *, tp: int = 1, sections: tuple[int, ...] = (), kind: str = "nvfp4") -> Admitted:
    answer = admit(Projection("p", n * tp, k, kind, Split.COLUMN, sections=tuple(part * tp for part in sections)), tp)
    assert isinstance(answer, Admitted), str(answer)
    return answer


def _nvfp4(n: int, seed: int = 0, global_scale: float = 2.0**-9) -> Nvfp4Weights:
    return Nvfp4Weights.random(np.random.default_rng(seed), n, K, global_scale)


def _inputs(rows: int) -> F64:
    """Values that float16 holds."""
    x: F64 = (0.1 * np.random.default_rng(rows).normal(size=(rows, K))).astype(np.float16).astype(np.float64)
    return x


@pytest.mark.parametrize("rows", [1, 8, 17])
@pytest.mark.parametrize(("n", "physical"), [(24, 32), (32, 32), (48, 64), (8240, 8256)])
def test_padded_equals_unpadded(n: int, physical: int, rows: int, targets: tuple[Target, ...], record: Record) -> None:
    """Buffers of the physical width, results of the logical one: against fp64, and against twice as much padding."""
    record.group("padding")
    weights, x, admitted = _nvfp4(n), _inputs(rows), _admitted(n)
    assert admitted.physical_n == physical
    for target in targets:
        projection = adapt_nvfp4(admitted, [weights.matrix()], device=torch.device(target.name))
        buffer = target.unwritten(rows, physical)
        (got,) = projection.run(target.put(x), buffer)
        assert got.shape == (rows, n)
        assert got.stride(0) == physical
        assert not buffer[:, n:].any(), "the padding is not exactly zero"
        error = relative_l2(f64(got), weights.product(x))
        assert error < CLOSE, f"{error:.3e} from the exact product; allowed: below {CLOSE}"
        wider = adapt_nvfp4(replace(admitted, physical_n=2 * physical), [weights.matrix()], device=got.device)
        (again,) = wider.run(target.put(x), target.unwritten(rows, 2 * physical))
        assert_bits_equal(array(again), array(got), "more padding")


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("n", [24, 48, 8240])
def test_int4_pads_its_zero_points_too(n: int, group: int, targets: tuple[Target, ...], record: Record) -> None:
    record.group("padding")
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 16, (n, K), dtype=np.uint8)
    zeros = rng.integers(0, 16, (n, K // group), dtype=np.uint8)
    scales = (rng.uniform(0.5, 2.0, (n, K // group)) * 2.0**-7).astype(np.float16)
    matrix = Int4Matrix(*(torch.from_numpy(part) for part in (codes, scales, zeros)))
    answer = admit(Projection("p", n, K, "awq_int4", Split.COLUMN, group=group), 1)
    assert isinstance(answer, Admitted)
    x = _inputs(8)
    wide = [np.repeat(part.astype(np.float64), group, axis=1) for part in (zeros, scales)]
    expected = x @ ((codes - wide[0]) * wide[1]).T
    for target in targets:
        buffer = target.unwritten(8, answer.physical_n)
        (got,) = adapt_int4(answer, matrix, device=torch.device(target.name)).run(target.put(x), buffer)
        assert relative_l2(f64(got), expected) < CLOSE
        assert not buffer[:, n:].any()


def test_bias_and_sections_see_the_logical_width(native_library: str, record: Record) -> None:
    """q 20 | k 10 | v 10 of 40 columns in 64: the bias is 40 wide and the parts are those of the logical columns."""
    record.group("padding")
    weights, x = _nvfp4(40), _inputs(4)
    bias = torch.arange(40.0)
    projection = adapt_nvfp4(_admitted(40, sections=(20, 10, 10)), [weights.matrix()], bias)
    parts = projection.run(torch.from_numpy(x).float(), projection.buffer(4))
    assert [tuple(part.shape) for part in parts] == [(4, 20), (4, 10), (4, 10)]
    expected = weights.product(x) + np.arange(40.0)
    assert relative_l2(f64(torch.cat(parts, dim=1)), expected) < CLOSE


def test_the_order_by_hand(record: Record) -> None:
    """Columns 0 .. 31 of which 24 are real, a bias of 100, two parts: the padding is never seen."""
    record.group("padding")
    physical = torch.arange(32.0).repeat(2, 1)
    first, second = finished(physical, _admitted(24, sections=(16, 8)), torch.full((24,), 100.0))
    assert first.tolist() == [[100.0 + column for column in range(16)]] * 2
    assert second.tolist() == [[100.0 + column for column in range(16, 24)]] * 2
    assert physical[:, 24:].tolist() == [list(map(float, range(24, 32)))] * 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16], ids=["uint8", "fp16"])
def test_padding_rows_are_zeros(dtype: torch.dtype, record: Record) -> None:
    record.group("padding")
    rows = torch.full((3, 5), 7, dtype=dtype)
    padded = padded_rows(rows, 8)
    assert torch.equal(padded[:3], rows)
    assert not padded[3:].any()


def test_warm_up_and_graphs_use_the_physical_width(native_library: str, record: Record) -> None:
    record.group("warm-up")
    projection = adapt_nvfp4(_admitted(48), [_nvfp4(48).matrix()])
    x = torch.from_numpy(_inputs(8)).float()
    assert projection.buffer(8).shape == (8, 64)
    projection.warm_up(x, projection.buffer(8))
    for write in (projection.warm_up, projection.run):
        with pytest.raises(ValueError, match=r"p: out \(8, 48\); allowed: the physical \(8, 64\)"):
            write(x, torch.zeros(8, 48))


def test_a_captured_product_has_the_bits_of_the_eager_one(gpu: Target, record: Record) -> None:
    record.group("warm-up")
    projection = adapt_nvfp4(_admitted(8240), [_nvfp4(8240).matrix()], device=torch.device(gpu.name))
    x, buffer = gpu.put(_inputs(8)), gpu.unwritten(8, 8256)
    projection.warm_up(x, buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph):
        (captured,) = projection.run(x, buffer)
    x *= 0.5
    graph.replay()
    (eager,) = projection.run(x, gpu.unwritten(8, 8256))
    assert_bits_equal(array(captured), array(eager), "replay")


@pytest.mark.parametrize(
    ("tp", "rows", "expected"),
    [
        (2, 8, LinearKernel.PACKED),
        (4, 8, LinearKernel.SMALL_M),
        (4, 1, LinearKernel.SMALL_M),
        (4, 9, LinearKernel.PACKED),
        (8, 8, LinearKernel.PACKED),
    ],
)
def test_the_small_m_route_runs_only_where_it_is_promoted(
    tp: int, rows: int, expected: LinearKernel, native_library: str, record: Record
) -> None:
    """Counted when it ran; on TP 2 the row says why it did not."""
    record.group("small m")
    admitted = _admitted(64, tp=tp)
    projection = adapt_nvfp4(admitted, [_nvfp4(64).matrix()])
    counters = KernelCounters([projection])
    counters.forward(rows)
    assert projection.kernel(rows) is expected
    assert counters.ran == {expected: 1}
    if tp != 4:
        assert admitted.notes == (f"small-M kernel is promoted at TP 4 alone, this is TP {tp}",)


@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize(("n", "k"), [(24, 64), (48, 512), (64, 1344), (4120, 320)])
def test_the_small_m_kernel_has_the_bits_of_the_packed_one(
    n: int, k: int, rows: int, targets: tuple[Target, ...], record: Record
) -> None:
    """Another schedule of loads, the same order of adding: a row's bits do not depend on which of the two it took.

    Widths that are padded, and inputs of fewer and of more tiles than are asked for ahead.
    """
    record.group("small m")
    weights = Nvfp4Weights.random(np.random.default_rng(k), n, k)
    x = (0.1 * np.random.default_rng(rows).normal(size=(rows, k))).astype(np.float16).astype(np.float64)
    admitted = _admitted(n, k, tp=4)
    assert admitted.kernel is LinearKernel.SMALL_M
    for target in targets:
        got = []
        for kernel in (LinearKernel.SMALL_M, LinearKernel.PACKED):
            projection = adapt_nvfp4(
                replace(admitted, kernel=kernel), [weights.matrix()], device=torch.device(target.name)
            )
            buffer = target.unwritten(rows, admitted.physical_n)
            got.append(array(projection.run(target.put(x), buffer)[0]))
            assert not buffer[:, n:].any(), "the padding is not exactly zero"
        assert_bits_equal(got[0], got[1], f"small-M kernel, {rows} rows of [{n}, {k}]")
        assert relative_l2(f64(torch.from_numpy(got[0])), weights.product(x)) < CLOSE


def test_the_small_m_kernel_takes_no_more_rows_than_the_table_says(native_library: str, record: Record) -> None:
    record.group("small m")
    assert SMALL_M_ROWS == functional.FEW_ROWS
    with pytest.raises(ValueError, match="x: saw 9 rows, allowed up to 8 for the kernel of few rows"):
        functional.linear_few_rows(torch.zeros(9, K), _nvfp4(64).matrix().pack())


def _product(parts: list[Nvfp4Matrix], x: F64) -> F64:
    """fp64, each part with its own global scale, from the formats' definitions."""
    columns = [
        x @ int4.nvfp4(part.codes.numpy(), part.scales.view(torch.uint8).numpy(), part.global_scale).T for part in parts
    ]
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("second", [2.0**-9, 2.0**-10, 2.0**-7], ids=["equal", "half", "four-times"])
def test_powers_of_two_between_global_scales_fold_exactly(second: float, native_library: str, record: Record) -> None:
    record.group("global scales")
    parts = [_nvfp4(32, 1).matrix(), _nvfp4(16, 2, second).matrix()]
    folded = one_global_scale(parts)
    assert len({part.global_scale for part in folded}) == 1
    x = _inputs(4)
    assert np.array_equal(_product(folded, x), _product(parts, x)), "folding changed a weight"
    projection = adapt_nvfp4(_admitted(48, sections=(32, 16)), parts)
    got = torch.cat(projection.run(torch.from_numpy(x).float(), projection.buffer(4)), dim=1)
    assert relative_l2(f64(got), _product(parts, x)) < CLOSE


def test_a_fold_takes_the_scale_that_all_can_have(record: Record) -> None:
    """Block scales of 2^-9 cannot be halved, so the larger global scale cannot stand for both; the smaller can."""
    record.group("global scales")
    smallest = torch.full((1, 1), 2.0**-9).to(torch.float8_e4m3fn)
    codes = torch.full((1, 8), 0x22, dtype=torch.uint8)
    large, small = (Nvfp4Matrix(codes, smallest, scale) for scale in (1.0, 0.5))
    folded = one_global_scale([large, small])
    assert [part.global_scale for part in folded] == [0.5, 0.5]
    assert [float(part.scales.float()) for part in folded] == [2.0**-8, 2.0**-9]


@pytest.mark.parametrize("second", [0.7 * 2.0**-9, 3 * 2.0**-9, 2.0**-30], ids=["0.7", "three-times", "out-of-range"])
def test_other_global_scales_are_refused(second: float, record: Record) -> None:
    record.group("global scales")
    parts = [_nvfp4(32, 1).matrix(), _nvfp4(16, 2, second).matrix()]
    with pytest.raises(InputError, match="allowed: equal ones, or powers of two apart"):
        adapt_nvfp4(_admitted(48, sections=(32, 16)), parts)


def test_refusals_name_what_was_seen(record: Record) -> None:
    record.group("padding")
    admitted = _admitted(48)
    weight = _nvfp4(48).matrix()
    with pytest.raises(ValueError, match="p: 40 rows; allowed: the rank's 48"):
        adapt_nvfp4(admitted, [_nvfp4(40).matrix()])
    with pytest.raises(ValueError, match=r"weight \[48, 512\], admitted at physical \[64, 512\]"):
        AdaptedLinear(admitted, weight.pack())
    with pytest.raises(ValueError, match=r"bias \(64,\); allowed: the logical width 48"):
        adapt_nvfp4(admitted, [weight], torch.zeros(64))
