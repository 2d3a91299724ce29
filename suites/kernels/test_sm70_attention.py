"""Paged attention of the device code: FP16 and FP8 caches, every mask, large pages, bits over launches and batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from native import ops_cuda
from suites.kernels import inputs
from suites.oracles import attention, judge, tolerance
from suites.oracles.arrays import F64
from suites.oracles.attention import Attended
from suites.targets import Target, array, f64

pytestmark = pytest.mark.group("sm70 attention")

LAUNCHES = 6
PAGES = (16, 784, 1648, 3296)  # a classic one, and those of hybrid models: one recurrent state per page
LONG_CONTEXT = 32768
LONG_LIMIT = 5e-4  # relative L2 over one decoded cache, as published for grouped verification of an E4M3 cache


@dataclass(frozen=True, slots=True)
class Shape:
    """What one call looks like; ``cache`` is f16, e4m3 or e5m2, FP8 caches with k_scale 0.5 and v_scale 2."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: tuple[int, int] = (6, 1)
    head_dim: int = 128
    block_size: int = 16
    cache: str = "f16"
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    anchors: tuple[int, ...] | None = None
    anchored_window: int = 0

    def __str__(self) -> str:
        lengths, queries = (",".join(map(str, numbers)) for numbers in (self.lengths, self.queries))
        mask = "c" if self.causal else "n"
        mask += "" if self.window == (-1, -1) else f"w{self.window[0]},{self.window[1]}"
        mask += "" if self.anchors is None else f"a{','.join(map(str, self.anchors))}+{self.anchored_window}"
        group = f"h{self.heads[0]}:{self.heads[1]}"
        return f"{self.cache}-L{lengths}-q{queries}-{group}-d{self.head_dim}-b{self.block_size}-{mask}"

    @property
    def scales(self) -> tuple[float, float]:
        """k_scale and v_scale."""
        return (1.0, 1.0) if self.cache == "f16" else (0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tensors of a call, and the values that an FP8 cache decodes to."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start: torch.Tensor
    anchor_lens: torch.Tensor | None
    k_values: F64
    v_values: F64


DECODE = [
    Shape((1,), (1,), head_dim=64),
    Shape((300, 17, 256), (1, 1, 1), heads=(9, 3), head_dim=64),
    Shape((600,), (1,), heads=(6, 1), head_dim=256, block_size=784),
    Shape((257, 513), (1, 1), heads=(4, 4), block_size=7),
    *(Shape((300,), (1,), head_dim=dim, cache=cache) for dim in (64, 128, 256) for cache in ("e4m3", "e5m2")),
    Shape((300, 1), (1, 1), heads=(2, 1), head_dim=64, block_size=1),  # one block per key: far more than are at hand
    Shape((2100,), (1,), heads=(2, 1), head_dim=64, block_size=7),
]
VERIFY = [
    *(Shape((300,), (8,), head_dim=256, block_size=1648, cache=cache) for cache in ("f16", "e4m3", "e5m2")),
    Shape((9, 270), (8, 8), heads=(9, 3), head_dim=64),
    *(Shape((1032,), (8,), head_dim=256, block_size=page, cache="e4m3") for page in (16, 3296)),
    Shape((8, 40), (8, 3), heads=(12, 2)),
]
PREFILL = [
    Shape((70,), (70,), heads=(4, 1), head_dim=64),
    Shape((100, 33), (90, 33), heads=(2, 2)),
    Shape((96,), (80,), heads=(2, 1), head_dim=256, block_size=784),
]
MASKS = [
    Shape((300,), (8,), heads=(4, 1), window=(16, -1)),
    Shape((90,), (30,), heads=(2, 1), head_dim=64, window=(31, 0)),
    Shape((64, 20), (8, 8), heads=(4, 1), causal=False),
    Shape((300,), (8,), heads=(4, 1), causal=False, window=(20, -1)),
    Shape((300,), (8,), heads=(4, 1), causal=False, window=(31, 4)),
    Shape((300, 90), (8, 8), heads=(6, 1), anchors=(40, 0), anchored_window=32),
    Shape((300,), (8,), heads=(6, 1), anchors=(300,), anchored_window=0),
    Shape((1500,), (8,), heads=(2, 1), head_dim=64, block_size=4, anchors=(40,), anchored_window=32),
]
DETERMINISM = [
    Shape((length,), (length,), heads=(12, 2), block_size=256, cache=cache)
    for length in (300, 512)
    for cache in ("f16", "e4m3", "e5m2")
] + [
    replace(Shape((300,), (8,), heads=(6, 1)), head_dim=dim, block_size=page, cache=cache)
    for dim in (64, 128, 256)
    for page in PAGES
    for cache in ("f16", "e4m3", "e5m2")
]


def _inputs(target: Target, shape: Shape, poison: float = float("nan")) -> Inputs:
    """A shuffled, poisoned cache; an FP8 one is encoded by the oracle, so the codec is not judged here."""
    rng = inputs.generator(*shape.lengths, *shape.queries, shape.head_dim, shape.block_size)
    q_heads, kv_heads = shape.heads
    plain = inputs.paged(rng, target, shape.lengths, shape.block_size, kv_heads, shape.head_dim, poison=poison)
    q = target.put(inputs.normal(rng, sum(shape.queries), q_heads, shape.head_dim))
    k, v = plain.k, plain.v
    k_values, v_values = f64(k), f64(v)
    if shape.cache != "f16":
        encoded, k_values, v_values = inputs.as_fp8(plain, shape.cache, shape.scales)
        k, v = encoded.k, encoded.v
    anchors = None if shape.anchors is None else target.put(np.array(shape.anchors, dtype=np.int32))
    start = inputs.query_start(target, shape.queries)
    return Inputs(q, k, v, plain.block_table, plain.seq_lens, start, anchors, k_values, v_values)


def _run(target: Target, shape: Shape, data: Inputs) -> torch.Tensor:
    k_scale, v_scale = shape.scales
    out = ops_cuda.paged_attention(
        data.q,
        data.k,
        data.v,
        data.block_table,
        data.seq_lens,
        data.query_start,
        scale=1 / math.sqrt(shape.head_dim),
        causal=shape.causal,
        window=shape.window,
        anchor_lens=data.anchor_lens,
        anchored_window=shape.anchored_window,
        k_scale=k_scale,
        v_scale=v_scale,
        out=target.unwritten(*data.q.shape),
    )
    ops_cuda.raise_on_fault(data.q.device)
    return out


def _expect(shape: Shape, data: Inputs) -> Attended:
    return attention.paged_attention(
        f64(data.q),
        data.k_values,
        data.v_values,
        array(data.block_table),
        array(data.seq_lens),
        array(data.query_start),
        scale=1 / math.sqrt(shape.head_dim),
        causal=shape.causal,
        window=shape.window,
        anchor_lens=None if data.anchor_lens is None else array(data.anchor_lens),
        anchored_window=shape.anchored_window,
    )


def _check(target: Target, shape: Shape, poison: float = float("nan")) -> None:
    data = _inputs(target, shape, poison)
    expected = _expect(shape, data)
    limit = tolerance.attention(expected, shape.head_dim, target.arithmetic, half_weights=True)
    judge.assert_within(f64(_run(target, shape, data)), expected.out, limit, str(shape))


@pytest.mark.parametrize("shape", DECODE, ids=str)
def test_decode(sm70: Target, shape: Shape) -> None:
    """Split along the keys where there are many of them; NaN beyond live lengths and in unused pages."""
    _check(sm70, shape)


@pytest.mark.parametrize("shape", VERIFY, ids=str)
def test_grouped_verification(sm70: Target, shape: Shape) -> None:
    """Eight query rows times a GQA group in one tile, the same decoded cache for FP8: arithmetic error only."""
    _check(sm70, shape)


@pytest.mark.parametrize("page", [16, 3296])
@pytest.mark.parametrize("queries", [1, 8])
def test_a_long_context(gpu: Target, queries: int, page: int) -> None:
    """All partitions at work: E4M3 at 32,768 keys against fp64 over the same decoded cache."""
    shape = Shape((LONG_CONTEXT,), (queries,), head_dim=256, block_size=page, cache="e4m3")
    data = _inputs(gpu, shape)
    expected = _expect(shape, data)
    actual = f64(_run(gpu, shape, data))
    limit = tolerance.attention(expected, shape.head_dim, gpu.arithmetic, half_weights=True)
    judge.assert_within(actual, expected.out, limit, str(shape))
    assert judge.relative_l2(actual, expected.out) < LONG_LIMIT


@pytest.mark.parametrize("shape", PREFILL, ids=str)
def test_prefill(sm70: Target, shape: Shape) -> None:
    _check(sm70, shape)


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(sm70: Target, shape: Shape) -> None:
    """Windows, non-causal blocks (a left window alone is symmetric), anchored prefixes."""
    _check(sm70, shape)


@pytest.mark.parametrize("poison", [float("inf"), 100.0])
def test_poison_beyond_the_live_length_never_counts(sm70: Target, poison: float) -> None:
    _check(sm70, Shape((300, 5), (8, 5), heads=(9, 3), head_dim=64), poison)


@pytest.mark.parametrize("shape", DETERMINISM, ids=str)
def test_six_launches(sm70: Target, shape: Shape) -> None:
    """L300 and L512 prefill and every head dim, page and cache: the bits of the first launch, six times."""
    data = _inputs(sm70, shape, poison=100.0)
    first = array(_run(sm70, shape, data))
    for launch in range(1, LAUNCHES):
        judge.assert_bits_equal(array(_run(sm70, shape, data)), first, f"launch {launch + 1}")


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("cache", ["f16", "e4m3"])
def test_a_verified_row_has_the_bits_of_the_decoded_one(sm70: Target, cache: str, head_dim: int) -> None:
    """Row i of eight, and the same row decoded alone at its own length: other tiles, other threads, the same sums."""
    shape = Shape((520,), (8,), heads=(6, 1), head_dim=head_dim, cache=cache)
    data = _inputs(sm70, shape)
    together = array(_run(sm70, shape, data))
    for row in range(8):
        alone = replace(
            data,
            q=data.q[row : row + 1].contiguous(),
            seq_lens=data.seq_lens - (7 - row),
            query_start=inputs.query_start(sm70, (1,)),
        )
        judge.assert_bits_equal(array(_run(sm70, shape, alone))[0], together[row], f"row {row}")


def test_padded_sequences_give_zeros(sm70: Target) -> None:
    """A graph's padding: length 0 with a query row, and a block table full of zeros."""
    shape = Shape((40, 0), (1, 1), heads=(4, 1), head_dim=64)
    data = _inputs(sm70, shape)
    out = array(_run(sm70, shape, data))
    assert np.isfinite(out[0]).all()
    assert not out[1].any()


@pytest.mark.parametrize(
    ("lengths", "table", "said"),
    [((33,), ((0, 1),), "33"), ((20,), ((0, 9),), "9"), ((20,), ((0, -1),), "-1")],
    ids=["too-long", "no-such-block", "negative-block"],
)
def test_values_only_a_kernel_sees_are_reported(
    sm70: Target, lengths: tuple[int, ...], table: tuple[tuple[int, ...], ...], said: str
) -> None:
    """Lengths and tables are read on the device: a bad one damages nothing and is named afterwards."""
    cache = torch.zeros(4, 2, 16, 1, 64, dtype=torch.float16, device=sm70.name)
    ops_cuda.paged_attention(
        torch.zeros(1, 2, 64, dtype=torch.float16, device=sm70.name),
        cache[:, 0],
        cache[:, 1],
        sm70.put(np.array(table, dtype=np.int32)),
        sm70.put(np.array(lengths, dtype=np.int32)),
        inputs.query_start(sm70, (1,)),
        scale=1.0,
    )
    with pytest.raises(ValueError, match=said):
        ops_cuda.raise_on_fault(cache.device)
    ops_cuda.raise_on_fault(cache.device)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"q": (2, 4, 60)}, "60"),
    ({"heads": 3}, "3 query heads over 2"),
    ({"window": (-2, 0)}, "-2"),
    ({"scale": float("nan")}, "nan"),
    ({"k_scale": 0.0}, "0.0"),
    ({"causal": False, "anchored": True}, "causal=False"),
    ({"anchored_window": -1}, "-1"),
    ({"misaligned": True}, "address"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=["-".join(change) for change, _ in WRONG])
def test_wrong_input_is_named(sm70: Target, change: dict[str, object], said: str) -> None:
    cache = torch.zeros(4, 2, 16, 2, 64, dtype=torch.float16, device=sm70.name)
    heads = change.get("heads", 4)
    assert isinstance(heads, int)
    q = torch.zeros(2 * heads * 64 + 1, dtype=torch.float16, device=sm70.name)[:-1].view(2, heads, 64)
    if "q" in change:
        q = torch.zeros(2, 4, 60, dtype=torch.float16, device=sm70.name)
    if "misaligned" in change:
        q = torch.zeros(2 * heads * 64 + 1, dtype=torch.float16, device=sm70.name)[1:].view(2, heads, 64)
    anchors = sm70.put(np.array([3], dtype=np.int32)) if "anchored" in change else None
    options = {key: value for key, value in change.items() if key in {"window", "k_scale", "causal", "anchored_window"}}
    with pytest.raises(ValueError, match=said):
        ops_cuda.paged_attention(
            q,
            cache[:, 0],
            cache[:, 1],
            sm70.put(np.array([[0, 1]], dtype=np.int32)),
            sm70.put(np.array([20], dtype=np.int32)),
            inputs.query_start(sm70, (2,)),
            scale=change.get("scale", 1.0),  # type: ignore[arg-type]
            anchor_lens=anchors,
            **options,  # type: ignore[arg-type]
        )
