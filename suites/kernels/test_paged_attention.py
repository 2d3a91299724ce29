"""Paged attention against fp64: decode, verification, prefill, every mask, poison where a kernel must not look."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from engine.ops import functional
from native import ops, ops_cuda
from suites.kernels import accuracy, inputs
from suites.oracles import attention, fp8, judge, tolerance
from suites.recording import Record
from suites.targets import CPU, Target, array, f64

pytestmark = pytest.mark.group("paged_attention")

FULL = (-1, -1)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sequence lengths, how many of each are query rows, and the geometry of the cache."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: tuple[int, int] = (inputs.Q_HEADS, inputs.KV_HEADS)
    head_dim: int = inputs.HEAD_DIM
    block_size: int = 16
    causal: bool = True
    window: tuple[int, int] = FULL
    cache: str = "activations"

    def __str__(self) -> str:
        mask = ("c" if self.causal else "n") + ("" if self.window == FULL else f"w{self.window[0]},{self.window[1]}")
        lengths, queries = (",".join(map(str, numbers)) for numbers in (self.lengths, self.queries))
        cache = "" if self.cache == "activations" else f"{self.cache}-"
        heads = f"h{self.heads[0]}:{self.heads[1]}"
        return f"{cache}L{lengths}-q{queries}-{heads}-d{self.head_dim}-b{self.block_size}-{mask}"

    @property
    def scales(self) -> tuple[float, float]:
        """k_scale and v_scale of an FP8 cache."""
        return (1.0, 1.0) if self.cache == "activations" else (0.5, 2.0)


DECODE = [
    Shape((1,), (1,)),
    Shape((2, 300, 17), (1, 1, 1)),
    Shape((512,), (1,)),
    Shape((1023,), (1,), block_size=784),
    Shape((33, 16, 1), (1, 1, 1), heads=(4, 4), head_dim=128),
    Shape((65,), (1,), heads=(6, 1), head_dim=256),
    Shape((100,), (1,), heads=(8, 2), head_dim=16, block_size=7),
]
VERIFY = [
    Shape((300,), (8,)),
    Shape((9, 300, 8), (8, 8, 8)),
    Shape((64, 63), (8, 3), heads=(12, 2), head_dim=128),
    Shape((1030,), (8,), heads=(6, 1), head_dim=256, block_size=784),
    Shape((31, 7), (1, 5), heads=(3, 3), head_dim=48, block_size=5),
]
PREFILL = [
    Shape((17,), (17,)),
    Shape((300,), (300,), heads=(12, 2), head_dim=128, block_size=256),
    Shape((5, 64, 33), (5, 40, 33)),
    Shape((129,), (129,), head_dim=16, heads=(2, 1)),
]
FP8 = [
    Shape((300, 17), (8, 1), cache=cache, head_dim=head_dim, block_size=block_size)
    for cache in ("e4m3", "e5m2")
    for head_dim, block_size in ((64, 16), (128, 784), (256, 16))
]
MASKS = [
    Shape((300, 40), (8, 40), window=(16, -1)),
    Shape((300,), (8,), window=(0, -1)),
    Shape((100,), (100,), window=(31, 0)),
    Shape((64, 20), (8, 8), causal=False),
    Shape((300,), (8,), causal=False, window=(31, 4)),
    Shape((90,), (8,), causal=False, window=(20, -1)),
    Shape((40,), (8,), causal=False, window=(2, -1)),
    Shape((90,), (90,), causal=False, window=(-1, 3)),
]


def _run(
    target: Target,
    shape: Shape,
    cache: inputs.Paged,
    q: torch.Tensor,
    out: torch.Tensor | None = None,
    partition: int | None = None,
) -> torch.Tensor:
    return functional.paged_attention(
        q,
        cache.k,
        cache.v,
        cache.block_table,
        cache.seq_lens,
        inputs.query_start(target, shape.queries),
        scale=1 / math.sqrt(shape.head_dim),
        causal=shape.causal,
        window=shape.window,
        k_scale=shape.scales[0],
        v_scale=shape.scales[1],
        partition=partition,
        out=out,
    )


def _data(target: Target, shape: Shape, **cache: object) -> tuple[inputs.Paged, torch.Tensor]:
    rng = inputs.generator(*shape.lengths, *shape.queries, shape.head_dim)
    q_heads, kv_heads = shape.heads
    pages = inputs.paged(rng, target, shape.lengths, shape.block_size, kv_heads, shape.head_dim, **cache)  # type: ignore[arg-type]
    return pages, target.put(inputs.normal(rng, sum(shape.queries), q_heads, shape.head_dim))


def _check(target: Target, shape: Shape, record: Record | None = None, **cache: object) -> None:
    pages, q = _data(target, shape, **cache)
    keys, values = f64(pages.k), f64(pages.v)
    if shape.cache != "activations":
        pages, keys, values = inputs.as_fp8(pages, shape.cache, shape.scales)
    out = _run(target, shape, pages, q, target.unwritten(*q.shape))
    expected = attention.paged_attention(
        f64(q),
        keys,
        values,
        array(pages.block_table),
        array(pages.seq_lens),
        np.concatenate([[0], np.cumsum(shape.queries)]),
        scale=1 / math.sqrt(shape.head_dim),
        causal=shape.causal,
        window=shape.window,
    )
    half_weights = target.activations is torch.float16
    limit = tolerance.attention(expected, shape.head_dim, target.arithmetic, half_weights=half_weights)
    judge.assert_within(f64(out), expected.out, limit, f"{target.name} attention")
    if record is not None:
        accuracy.record_share(record, target, f64(out), expected.out, limit)


@pytest.mark.parametrize("shape", DECODE, ids=str)
def test_decode(targets: tuple[Target, ...], record: Record, shape: Shape) -> None:
    """One query row per sequence; NaN beyond the live length, in unused blocks and in the output."""
    for target in targets:
        _check(target, shape, record)


@pytest.mark.parametrize("shape", VERIFY, ids=str)
def test_verification(targets: tuple[Target, ...], record: Record, shape: Shape) -> None:
    """K + 1 rows per sequence, each with its own causal limit."""
    for target in targets:
        _check(target, shape, record)


@pytest.mark.parametrize("shape", PREFILL, ids=str)
def test_prefill(targets: tuple[Target, ...], record: Record, shape: Shape) -> None:
    for target in targets:
        _check(target, shape, record)


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(targets: tuple[Target, ...], record: Record, shape: Shape) -> None:
    """Sliding windows and non-causal blocks, at their inclusive edges."""
    for target in targets:
        _check(target, shape, record)


@pytest.mark.parametrize("shape", FP8, ids=str)
def test_fp8_cache(targets: tuple[Target, ...], record: Record, shape: Shape) -> None:
    """Against the same decoded cache: arithmetic error only, quantisation has its own cases."""
    for target in targets:
        _check(target, shape, record)


@pytest.mark.parametrize("fmt", fp8.FORMATS, ids=lambda fmt: fmt.name)
def test_every_finite_code_is_decoded_exactly(targets: tuple[Target, ...], fmt: fp8.Fp8Format) -> None:
    """One key a sequence has weight 1, so its output is its value: all 256 codes but those that are no number."""
    finite = np.flatnonzero(np.isfinite(fmt.table())).astype(np.uint8)
    codes = np.resize(finite, 256).reshape(4, 1, 1, 64)
    for target in targets:
        values = inputs.fp8_tensor(codes, fmt.name, target)
        out = functional.paged_attention(
            target.put(np.zeros((4, 1, 64))),
            inputs.fp8_tensor(np.zeros_like(codes), fmt.name, target),
            values,
            target.put(np.arange(4, dtype=np.int32)[:, None]),
            target.put(np.ones(4, dtype=np.int32)),
            inputs.query_start(target, (1, 1, 1, 1)),
            scale=1.0,
            out=target.unwritten(4, 1, 64),
        )
        exact = fp8.decode(codes, fmt).reshape(4, 1, 64)
        judge.assert_within(f64(out), exact, tolerance.exact(exact), f"{target.name} {fmt.name}")


@pytest.mark.parametrize("partition", [64, 128, 256])
def test_partitions_are_merged_in_order(targets: tuple[Target, ...], partition: int) -> None:
    """Any cut along the keys stays inside the bound, and keeps its bits from launch to launch."""
    shape = Shape((300, 64, 65, 1), (1, 1, 1, 1))
    for target in targets:
        pages, q = _data(target, shape)
        out = _run(target, shape, pages, q, target.unwritten(*q.shape), partition)
        half_weights = target.activations is torch.float16
        expected = attention.paged_attention(
            f64(q),
            f64(pages.k),
            f64(pages.v),
            array(pages.block_table),
            array(pages.seq_lens),
            np.arange(5),
            scale=1 / math.sqrt(shape.head_dim),
        )
        limit = tolerance.attention(expected, shape.head_dim, target.arithmetic, half_weights=half_weights)
        judge.assert_within(f64(out), expected.out, limit, f"{target.name} partitions of {partition}")
        again = _run(target, shape, pages, q, target.unwritten(*q.shape), partition)
        judge.assert_bits_equal(array(again), array(out), f"{target.name} partitions of {partition}")


def test_half_precision_cache(native_library: str) -> None:
    """A float16 cache under float32 queries: the same numbers, so the same fp32 bound."""
    _check(CPU, Shape((300, 17), (8, 1)), dtype=torch.float16)


@pytest.mark.parametrize("poison", [float("inf"), 100.0, -1e30])
def test_poison_beyond_the_live_length_never_counts(targets: tuple[Target, ...], poison: float) -> None:
    """NaN is tried everywhere; finite poison cannot hide behind a comparison that NaN fails."""
    for target in targets:
        if target.activations is torch.float16 and abs(poison) > 65504:
            poison = float("inf")
        _check(target, Shape((300, 5), (8, 5)), poison=poison)


@pytest.mark.parametrize("first", [1, 8, 64])
def test_a_row_does_not_know_its_batch(targets: tuple[Target, ...], first: int) -> None:
    """Row i of a verification has the bits of the decode that stops there: lookup on and off give the same tokens."""
    length = 300
    shape = Shape((length,), (first,))
    for target in targets:
        pages, q = _data(target, shape)
        together = array(_run(target, shape, pages, q))
        for row in range(first):
            alone_pages = inputs.Paged(pages.k, pages.v, pages.block_table, pages.seq_lens - (first - 1 - row))
            alone = array(_run(target, Shape((length,), (1,)), alone_pages, q[row : row + 1].contiguous()))
            judge.assert_bits_equal(alone[0], together[row], f"{target.name} row {row} of {first}")


def test_where_a_block_lies_changes_nothing(targets: tuple[Target, ...]) -> None:
    """The same tokens in other blocks, another block size: the same bits."""
    for target in targets:
        outputs = []
        for block_size, spare in ((16, 3), (16, 9), (7, 1), (512, 0)):
            rng = inputs.generator(11)
            q = target.put(inputs.normal(rng, 8, 9, 64))
            keys, values = (inputs.normal(rng, 300, 3, 64) for _ in range(2))
            pages = inputs.paged(inputs.generator(spare), target, (300,), block_size, 3, 64, spare_blocks=spare)
            table = array(pages.block_table)[0]
            for token in range(300):
                block, slot = table[token // block_size], token % block_size
                pages.k[block, slot] = target.put(keys[token])
                pages.v[block, slot] = target.put(values[token])
            outputs.append(array(_run(target, Shape((300,), (8,)), pages, q)))
        for other in outputs[1:]:
            judge.assert_bits_equal(other, outputs[0], f"{target.name} other blocks")


@pytest.mark.parametrize("length", [300, 512])
def test_direct_native_call_equals_the_public_wrapper(targets: tuple[Target, ...], length: int) -> None:
    """The prefill whose bits once changed from run to run: six launches each way, all of them the same bits."""
    shape = Shape((length,), (length,), heads=(12, 2), head_dim=128, block_size=256)
    for target in targets:
        pages, q = _data(target, shape, poison=100.0)
        start = inputs.query_start(target, shape.queries)
        arguments = (q, pages.k, pages.v, pages.block_table, pages.seq_lens, start)
        scale = 1 / math.sqrt(shape.head_dim)
        first = array(_run(target, shape, pages, q, target.unwritten(*q.shape)))
        for launch in range(6):
            out = target.unwritten(*q.shape)
            if target is CPU:
                ops.bind_paged_attention(*arguments, scale=scale, out=out)()
            else:
                ops_cuda.paged_attention(*arguments, scale=scale, out=out)
            judge.assert_bits_equal(array(out), first, f"{target.name} direct launch {launch + 1}")
            again = _run(target, shape, pages, q, target.unwritten(*q.shape))
            judge.assert_bits_equal(array(again), first, f"{target.name} wrapper launch {launch + 1}")


def test_large_scores_do_not_overflow(targets: tuple[Target, ...]) -> None:
    """One key wins by thousands: the answer is its value, finite and exact to rounding."""
    for target in targets:
        shape = Shape((40,), (1,), heads=(1, 1), head_dim=16)
        pages, q = _data(target, shape, poison=0.0)
        pages.k.mul_(0)
        q.fill_(100.0)
        block, slot = int(pages.block_table[0, 1]), 5
        pages.k[block, slot] = 100.0
        out = f64(_run(target, shape, pages, q, target.unwritten(1, 1, 16)))
        value = f64(pages.v[block, slot])[None]
        judge.assert_within(out, value, tolerance.Tolerance(np.abs(value) * 2.0**-10, "one fp16 rounding"), target.name)


def _arguments() -> dict[str, object]:
    cache = torch.zeros(4, 2, 16, 2, 16)
    return {
        "q": torch.zeros(2, 4, 16),
        "k_cache": cache[:, 0],
        "v_cache": cache[:, 1],
        "block_table": torch.tensor([[0, 1]], dtype=torch.int32),
        "seq_lens": torch.tensor([20], dtype=torch.int32),
        "query_start": torch.tensor([0, 2], dtype=torch.int32),
        "scale": 0.25,
    }


def _i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"block_table": _i32(0, 4)[None]}, "4"),
    ({"block_table": _i32(0, -1)[None]}, "-1"),
    ({"block_table": torch.zeros(1, 2, dtype=torch.int64)}, "int64"),
    ({"seq_lens": _i32(33)}, "33"),
    ({"seq_lens": _i32(1)}, "1"),
    ({"seq_lens": _i32(20, 20)}, "2"),
    ({"query_start": _i32(0, 3)}, "3"),
    ({"query_start": _i32(1, 2)}, "1"),
    ({"query_start": _i32(2, 0)}, "0"),
    ({"q": torch.zeros(2, 3, 16)}, "3"),
    ({"q": torch.zeros(2, 4, 8)}, "8"),
    ({"q": torch.zeros(2, 4, 16, dtype=torch.bfloat16)}, "bfloat16"),
    ({"scale": float("nan")}, "nan"),
    ({"k_scale": 0.0}, "0.0"),
    ({"partition": 17}, "17"),
    ({"window": (-2, 0)}, "-2"),
    ({"v_cache": torch.zeros(4, 16, 2, 16, dtype=torch.float16)}, "float16"),
    ({"out": torch.zeros(2, 4, 17)}, "17"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[f"{'-'.join(change)}-{said}" for change, said in WRONG])
def test_wrong_input_is_named(native_library: str, change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        functional.paged_attention(**{**_arguments(), **change})  # type: ignore[arg-type]


def test_the_arguments_that_the_wrong_ones_change_are_right(native_library: str) -> None:
    assert not functional.paged_attention(**_arguments()).any()  # type: ignore[arg-type]
