"""The remaining wrappers under arbitrary arguments: FP8 codecs, KV store, candidate logits, Gated DeltaNet.

As in `test_fuzz`: the answer of the plain twin, or a refusal with a message; the same examples in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.ops import functional, reference

pytest.importorskip("hypothesis", reason="needs hypothesis")

import hypothesis.strategies as st
from hypothesis import given, settings

from suites.kernels.test_fuzz import FUZZ as SLOW
from suites.kernels.test_fuzz import SMALL, assert_agree, indices, tensors

pytestmark = [pytest.mark.group("fuzz"), pytest.mark.usefixtures("native_library")]

FUZZ = settings(SLOW, max_examples=60)
FP8 = st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fn, torch.float16])
SCALES = st.sampled_from([1.0, 0.5, 3.0, 0.0, -1.0, float("nan"), float("inf")])


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]


def _same(op: str, arguments: Sequence[Any], written: Sequence[int] = (), **options: Any) -> None:
    """Native and twin on copies of the same arguments: results, and arguments that are written, agree."""
    mine, theirs = _copies(arguments), _copies(arguments)
    message, actual = "", None
    try:
        actual = getattr(functional, op)(*mine, **options)
    except (ValueError, RuntimeError) as refusal:
        message = str(refusal) or "none"
    if message:
        assert len(message) > 10, f"{op}: a refusal without a message: {message!r}"
        unchanged = (_equal(*pair) for pair in zip(arguments, mine, strict=True) if isinstance(pair[0], torch.Tensor))
        assert all(unchanged), f"{op}: refused, and wrote all the same"
        return
    expected = getattr(reference, op)(*theirs, **options)
    pairs = [(mine[at], theirs[at]) for at in written]
    if isinstance(actual, tuple):
        pairs += list(zip(actual, expected, strict=True))
    elif actual is not None:
        pairs.append((actual, expected))
    for seen, wanted in pairs:
        assert_agree(op, seen, wanted)


def _equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    return bool(torch.isclose(before.double(), after.double(), rtol=0, atol=0, equal_nan=True).all())


@given(st.data())
@FUZZ
def test_fp8_encode(data: st.DataObject) -> None:
    x = data.draw(tensors(data.draw(SMALL), data.draw(SMALL)))
    _same("fp8_encode", [x, data.draw(FP8)], scale=data.draw(SCALES))


@given(st.data())
@FUZZ
def test_fp8_decode(data: st.DataObject) -> None:
    count = data.draw(SMALL)
    codes = torch.tensor(data.draw(st.lists(st.integers(0, 255), min_size=count, max_size=count)), dtype=torch.uint8)
    codes = codes.view(data.draw(FP8)) if data.draw(st.integers(0, 9)) and count % 2 == 0 else codes
    wide = data.draw(st.sampled_from([torch.float32, torch.float16, torch.float64]))
    _same("fp8_decode", [codes], scale=data.draw(SCALES), out_dtype=wide)


@given(st.data())
@FUZZ
def test_store_kv(data: st.DataObject) -> None:
    tokens, heads, dim = data.draw(SMALL), data.draw(st.integers(1, 2)), data.draw(st.sampled_from([4, 16]))
    cache = torch.zeros(2, 2, 4, heads, dim).to(data.draw(st.sampled_from([torch.float32, torch.float8_e4m3fn])))
    slots = data.draw(indices(tokens, -1, 8, torch.int64))
    if len(set(slots.tolist()) - {-1}) < int((slots != -1).sum()):
        return  # two tokens in one slot: either may stay
    k, v = data.draw(tensors(tokens, heads, dim)), data.draw(tensors(tokens, heads, dim))
    _same("store_kv", [k, v, cache[:, 0], cache[:, 1], slots], (2, 3))


@given(st.data())
@FUZZ
def test_candidate_logits(data: st.DataObject) -> None:
    rows, width, k = data.draw(SMALL), data.draw(st.integers(1, 9)), data.draw(st.sampled_from([0, 8, 16, 24]))
    ids = data.draw(indices(rows * 3, 0, width, torch.int64)).view(rows, 3)
    weight = data.draw(tensors(width, k)).to(data.draw(st.sampled_from([torch.float16] * 5 + [torch.float64])))
    _same("candidate_logits", [data.draw(tensors(rows, k)), weight, ids])


@given(st.data())
@FUZZ
def test_gdn_gates(data: st.DataObject) -> None:
    tokens, heads = data.draw(SMALL), data.draw(st.integers(1, 4))
    rows = [data.draw(tensors(tokens, heads)) for _ in range(2)]
    _same("gdn_gates", [*rows, data.draw(tensors(heads)), data.draw(tensors(heads))])


@given(st.data())
@FUZZ
def test_gdn_gated_rms_norm(data: st.DataObject) -> None:
    tokens, heads, dim = data.draw(SMALL), data.draw(st.integers(1, 3)), data.draw(st.sampled_from([4, 8]))
    x, z = data.draw(tensors(tokens, heads, dim)), data.draw(tensors(tokens, heads, dim))
    _same("gdn_gated_rms_norm", [x, z, data.draw(tensors(dim)), data.draw(st.sampled_from([1e-6, 1e-3]))])


@given(st.data())
@FUZZ
def test_gdn_conv(data: st.DataObject) -> None:
    tokens, channels, states = data.draw(SMALL), data.draw(st.sampled_from([1, 4, 8])), 4
    slots = torch.full((tokens,), -1, dtype=torch.int32)
    if tokens:
        slots[-1] = data.draw(st.sampled_from([-1, 0, 1, 2, 9, -5]))
    initial = data.draw(st.sampled_from([3, 3, 3, -1, 7, -2]))
    starts = torch.tensor([0, data.draw(st.sampled_from([tokens] * 4 + [tokens + 1, -1]))], dtype=torch.int32)
    state = data.draw(tensors(states, 3, channels))
    first = torch.tensor([initial], dtype=torch.int32)
    x, weight = data.draw(tensors(tokens, channels)), data.draw(tensors(channels, 4))
    _same("gdn_conv", [x, weight, state, first, slots, starts], (2,))


@pytest.mark.parametrize("op", ["gdn_recurrent", "gdn_chunk"])
@given(data=st.data())
@FUZZ
def test_delta_rule(op: str, data: st.DataObject) -> None:
    tokens, key_heads, ratio = data.draw(SMALL), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    value_heads, key_dim, value_dim = key_heads * ratio, data.draw(st.sampled_from([4, 8])), 4
    slots = torch.full((tokens,), -1, dtype=torch.int32)
    if tokens:
        slots[-1] = data.draw(st.sampled_from([-1, 0, 1, 9]))
    q, k = (data.draw(tensors(tokens, key_heads, key_dim)) for _ in range(2))
    v = data.draw(tensors(tokens, value_heads, value_dim))
    gates = [data.draw(tensors(tokens, value_heads)) for _ in range(2)]
    gates = [-gates[0].abs() if gates[0].is_floating_point() else gates[0], gates[1]]
    state = data.draw(tensors(3, value_heads, value_dim, key_dim))
    first = torch.tensor([data.draw(st.sampled_from([2, 2, 2, -1, 5]))], dtype=torch.int32)
    starts = torch.tensor([0, tokens], dtype=torch.int32)
    _same(op, [q, k, v, *gates, state, first, slots, starts], (5,))
