"""Every wrapper under arbitrary arguments: it answers as the plain twin does, or refuses with a message. Never a crash.

The examples are the same in every run (derandomised), so a failure here is a failure everywhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.ops import functional, reference
from suites.kernels import inputs

pytest.importorskip("hypothesis", reason="needs hypothesis")

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

pytestmark = [pytest.mark.group("fuzz"), pytest.mark.usefixtures("native_library")]

FUZZ = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
DTYPES = st.sampled_from([torch.float32] * 8 + [torch.float16, torch.float64, torch.int32, torch.bfloat16])
SMALL = st.integers(0, 5)


@st.composite
def tensors(draw: st.DrawFn, *shape: int, dtype: st.SearchStrategy[torch.dtype] = DTYPES) -> torch.Tensor:
    """A tensor of about ``shape``: sometimes another rank, size, dtype, stride, or not a plain one at all."""
    sizes = list(shape)
    if draw(st.integers(0, 9)) == 0 and sizes:
        sizes[draw(st.integers(0, len(sizes) - 1))] += draw(st.sampled_from([-1, 1, 16]))
    if draw(st.integers(0, 19)) == 0:
        sizes = sizes[1:] or [1]
    sizes = [max(0, size) for size in sizes]
    values = np.random.default_rng(draw(st.integers(0, 99))).normal(size=sizes)
    tensor = torch.from_numpy(np.asarray(values)).to(draw(dtype))
    layout = draw(st.integers(0, 19))
    if layout == 0 and tensor.dim() > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == 1 and tensor.dim() > 0:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    if layout == 2 and tensor.dim() > 1:
        return inputs.strided_rows(tensor) if tensor.is_floating_point() else tensor
    if layout == 3 and tensor.dim() > 0:
        return tensor[:1].expand(tensor.shape)
    return tensor


@st.composite
def indices(draw: st.DrawFn, count: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
    """``count`` indices, nearly always inside ``low..high - 1``."""
    values = draw(st.lists(st.integers(low, max(low, high - 1)), min_size=count, max_size=count))
    if values and draw(st.integers(0, 9)) == 0:
        values[0] = draw(st.sampled_from([-1, -2, high, high + 1000, 2**31 - 1, -(2**31)]))
    wrong = draw(st.integers(0, 19)) == 0
    return torch.tensor(values, dtype=torch.float64 if wrong else dtype)


def _attempt(op: str, *arguments: Any, **options: Any) -> Any:
    """What the op gives, or the message it refuses with. Any other exception is a failure."""
    try:
        return getattr(functional, op)(*arguments, **options)
    except (ValueError, RuntimeError) as refusal:
        return str(refusal)


def _same(op: str, *arguments: Any, **options: Any) -> None:
    """Run native and twin on the same arguments; a refusal needs a message, an answer must agree with the twin."""
    actual = _attempt(op, *arguments, **options)
    if isinstance(actual, str):
        assert len(actual) > 10, f"{op}: a refusal without a message: {actual!r}"
        return
    assert_agree(op, actual, getattr(reference, op)(*arguments, **options))


def assert_agree(op: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Two answers of one shape, loosely (1e-3 of the largest value).

    Exact numerics are the oracles' business; this finds elements that are another's, or nobody's.
    """
    assert actual.shape == expected.shape
    seen, wanted = actual.to(torch.float64), expected.to(torch.float64)
    finite = wanted.abs()[wanted.isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    close = torch.isclose(seen, wanted, rtol=1e-3, atol=1e-3 * max(scale, 1e-6), equal_nan=True)
    assert bool(close.all()), f"{op}: {actual} against {expected}"


@given(st.data())
@FUZZ
def test_rms_norm(data: st.DataObject) -> None:
    rows, width = data.draw(SMALL), data.draw(st.integers(0, 40))
    eps = data.draw(st.sampled_from([1e-5, 1e-6, 1.0, 0.0, -1.0, math.nan, math.inf]))
    _same("rms_norm", data.draw(tensors(rows, width)), data.draw(tensors(width)), eps)


@given(st.data())
@FUZZ
def test_silu_mul(data: st.DataObject) -> None:
    _same("silu_mul", data.draw(tensors(data.draw(SMALL), 2 * data.draw(st.integers(0, 40)))))


@given(st.data())
@FUZZ
def test_linear(data: st.DataObject) -> None:
    rows, n, groups = data.draw(SMALL), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4))
    rng = inputs.generator(n, groups)
    kind = data.draw(st.sampled_from(["q4_1", "q8_0", "dense"]))
    weight: functional.Weight
    if kind == "q4_1":
        weight = functional.pack_q4_1(torch.from_numpy(inputs.q4_1_blocks(rng, n, 32 * groups)))
    elif kind == "q8_0":
        weight = functional.pack_q8_0(torch.from_numpy(inputs.q8_0_blocks(rng, n, 32 * groups)))
    else:
        weight = data.draw(tensors(n, 32 * groups))
    residual = data.draw(tensors(rows, n)) if data.draw(st.booleans()) else None
    _same("linear", data.draw(tensors(rows, 32 * groups)), weight, residual=residual)


@given(st.data())
@FUZZ
def test_packing(data: st.DataObject) -> None:
    op, size = data.draw(st.sampled_from([("pack_q4_1", 20), ("pack_q8_0", 34)]))
    shape = (data.draw(SMALL), data.draw(SMALL), size)
    blocks = data.draw(tensors(*shape, dtype=st.just(torch.uint8)))
    packed = _attempt(op, blocks)
    if isinstance(packed, str):
        assert len(packed) > 10
    else:
        assert packed.dequantize().shape == (blocks.shape[0], 32 * blocks.shape[1])


@given(st.data())
@FUZZ
def test_embedding(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 40))
    ids = data.draw(indices(data.draw(SMALL), 0, vocab, data.draw(st.sampled_from([torch.int32, torch.int64]))))
    if data.draw(st.booleans()):
        blocks = inputs.q8_0_blocks(inputs.generator(vocab), vocab, 64)
        _same("embedding", ids, functional.pack_q8_0(torch.from_numpy(blocks)))
    else:
        _same("embedding", ids, data.draw(tensors(vocab, data.draw(st.integers(0, 20)))))


@given(st.data())
@FUZZ
def test_rope_store_kv(data: st.DataObject) -> None:
    tokens, positions, blocks, block_size = (data.draw(st.integers(1, 4)) for _ in range(4))
    q_heads, kv_heads = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 2))
    dim = data.draw(st.sampled_from([16, 32, 64, 24, 8]))
    half = data.draw(st.integers(0, dim // 2 + 1))
    cache_dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.float64]))
    cache = torch.zeros(blocks, 2, block_size, kv_heads, dim, dtype=cache_dtype)
    _same(
        "rope_store_kv",
        data.draw(tensors(tokens, (q_heads + 2 * kv_heads) * dim)),
        data.draw(tensors(positions, half, 2)),
        data.draw(indices(tokens, 0, positions, torch.int32)),
        cache[:, 0],
        cache[:, 1],
        data.draw(indices(tokens, -1, blocks * block_size, torch.int64)),
        interleaved=data.draw(st.booleans()),
    )


@given(st.data())
@FUZZ
def test_paged_attention(data: st.DataObject) -> None:
    requests, block_size, blocks = (data.draw(st.integers(1, 3)) for _ in range(3))
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    dim = data.draw(st.sampled_from([16, 64, 24]))
    longest = blocks * block_size
    lengths = data.draw(indices(requests, 1, longest + 1, torch.int32))
    queries = [data.draw(st.integers(0, max(0, min(4, int(length))))) for length in lengths]
    starts = torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32)
    if data.draw(st.integers(0, 9)) == 0:
        starts[data.draw(st.integers(0, requests))] += data.draw(st.sampled_from([-1, 1, 1000]))
    table = data.draw(indices(requests * blocks, 0, blocks, torch.int32)).view(requests, blocks)
    cache = torch.randn(blocks, 2, block_size, kv_heads, dim, generator=torch.Generator().manual_seed(blocks))
    _same(
        "paged_attention",
        data.draw(tensors(sum(queries), kv_heads * group, dim)),
        cache[:, 0],
        cache[:, 1],
        table,
        lengths,
        starts,
        scale=data.draw(st.sampled_from([0.125, 1.0, 0.0, -1.0, math.nan, math.inf])),
        causal=data.draw(st.booleans()),
        window=data.draw(st.sampled_from([(-1, -1), (0, 0), (2, -1), (-1, 1), (-2, 0), (0, -5)])),
    )
