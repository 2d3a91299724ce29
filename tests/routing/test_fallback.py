"""The plain twin against a softmax written out by hand in NumPy: ALiBi, soft cap, sinks, FP8, any head size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.ops.attention_call import AttentionCall
from engine.ops.attention_fallback import attend

F64 = npt.NDArray[np.float64]
ROWS, LENGTH, HEADS, KV_HEADS, DIM, PAGE = 3, 21, 4, 2, 24, 5
# Float32 inside on inputs near 1: 24 products a score, 21 keys a sum, some exponentials. 64 roundings are beyond that.
LIMIT = 64 * 2.0**-24


def _call(**extras: object) -> AttentionCall:
    generator = torch.Generator().manual_seed(7)
    pages = -(-LENGTH // PAGE)
    cache = torch.randn(2, pages + 1, PAGE, KV_HEADS, DIM, generator=generator)
    call = AttentionCall(
        q=torch.randn(ROWS, HEADS, DIM, generator=generator),
        k_cache=cache[0],
        v_cache=cache[1],
        block_table=torch.randperm(pages, generator=generator)[None].to(torch.int32),
        seq_lens=torch.tensor([LENGTH], dtype=torch.int32),
        query_start=torch.tensor([0, ROWS], dtype=torch.int32),
        query_lens=(ROWS,),
        lengths=(LENGTH,),
        scale=0.2,
    )
    return replace(call, **extras)  # type: ignore[arg-type]


def _tokens(cache: torch.Tensor, call: AttentionCall) -> F64:
    table = call.block_table[0].tolist()
    rows = [cache[table[token // PAGE], token % PAGE].double().numpy() for token in range(LENGTH)]
    return np.stack(rows)


def _by_hand(call: AttentionCall, causal: bool = True, window: tuple[int, int] = (-1, -1)) -> F64:
    keys, values = _tokens(call.k_cache, call) * call.k_scale, _tokens(call.v_cache, call) * call.v_scale
    out = np.zeros((ROWS, HEADS, DIM))
    for row in range(ROWS):
        position = LENGTH - ROWS + row
        for head in range(HEADS):
            weights, total = [], np.zeros(DIM)
            for token in range(LENGTH):
                if causal and token > position:
                    continue
                if window[0] >= 0 and token < position - window[0]:
                    continue
                score = call.scale * float(call.q[row, head].double().numpy() @ keys[token, head // 2])
                if call.softcap is not None:
                    score = call.softcap * np.tanh(score / call.softcap)
                if call.alibi_slopes is not None:
                    score += float(call.alibi_slopes[head]) * (token - position)
                weights.append(np.exp(score))
                total += weights[-1] * values[token, head // 2]
            sink = 0.0 if call.sinks is None else float(np.exp(float(call.sinks[head])))
            out[row, head] = total / (sum(weights) + sink)
    return out


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(_call(), id="plain"),
        pytest.param(_call(alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625])), id="alibi"),
        pytest.param(_call(softcap=0.7), id="softcap"),
        pytest.param(_call(sinks=torch.tensor([0.0, 1.0, -2.0, 3.0])), id="sinks"),
        pytest.param(_call(softcap=0.7, sinks=torch.zeros(4), alibi_slopes=torch.full((4,), 0.1)), id="all"),
        pytest.param(_call(k_scale=0.5, v_scale=2.0), id="scales"),
    ],
)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_against_a_softmax_by_hand(call: AttentionCall, causal: bool) -> None:
    out = attend(call, causal=causal, window=(-1, -1))
    expected = _by_hand(call, causal)
    largest = np.abs(_tokens(call.v_cache, call) * call.v_scale).max()
    assert np.abs(out.double().numpy() - expected).max() <= LIMIT * largest


def test_a_window() -> None:
    out = attend(_call(), causal=True, window=(4, -1))
    assert np.abs(out.double().numpy() - _by_hand(_call(), window=(4, -1))).max() <= LIMIT * 5


@pytest.mark.parametrize("stored", [torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_an_fp8_cache_is_decoded(stored: torch.dtype) -> None:
    plain = _call()
    coded = replace(plain, k_cache=plain.k_cache.to(stored), v_cache=plain.v_cache.to(stored), k_scale=0.5, v_scale=2.0)
    out = attend(coded, causal=True, window=(-1, -1))
    largest = np.abs(_tokens(coded.v_cache, coded) * 2.0).max()
    assert np.abs(out.double().numpy() - _by_hand(coded)).max() <= LIMIT * largest


def test_empty_sequences_give_zeros() -> None:
    """A padded sequence reads nothing; its rows are zero."""
    call = replace(
        _call(),
        block_table=torch.zeros(2, 5, dtype=torch.int32),
        query_lens=(2, 1),
        lengths=(0, 3),
        q=torch.ones(3, HEADS, DIM),
    )
    out = attend(call, causal=True, window=(-1, -1))
    assert not out[:2].any()
    assert out[2].any()


def test_it_writes_where_it_is_told() -> None:
    out = torch.full((ROWS, HEADS, DIM), float("nan"))
    assert attend(_call(out=out), causal=True, window=(-1, -1)) is out
    assert bool(torch.isfinite(out).all())
