"""Tensors for a routed call, and what the oracle says they must give. Caches are full of NaN but for live tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.ops.attention_call import AttentionCall, RouteCounters
from engine.ops.attention_routes import execute
from engine.routing import RouteRequest, decide
from suites.kernels import inputs
from suites.oracles import attention, fp8, judge, tolerance
from suites.oracles.arrays import F64
from suites.routing.axes import call as describe
from suites.targets import Target, array, f64

_MOST_ROWS = 32
_STRIDE = 61

FORMATS = {torch.float8_e4m3fn: fp8.E4M3, torch.float8_e5m2: fp8.E5M2}
STORED = {"fp8_e4m3": torch.float8_e4m3fn, "fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True, slots=True)
class Scene:
    """A request, its tensors, and the same caches as the numbers that they decode to."""

    target: Target
    request: RouteRequest
    call: AttentionCall
    keys: F64
    values: F64

    def check(self, out: torch.Tensor, what: str, *, keys: F64 | None = None, values: F64 | None = None) -> None:
        """``out`` is whole, and within the forward error bound of fp64 attention over these keys and values.

        Of a long causal call some rows are compared, the last among them: each as a sequence that ends there.
        """
        assert bool(torch.isfinite(out).all()), f"{what}: an element is not finite, or was never written"
        call, rows = self.call, range(out.shape[0])
        table, lengths, starts = (array(tensor) for tensor in (call.block_table, call.seq_lens, call.query_start))
        if self.request.causal and out.shape[0] > _MOST_ROWS:
            rows = range(out.shape[0] - 1, -1, -max(_STRIDE, out.shape[0] // 12))
            owners = np.searchsorted(starts, rows, side="right") - 1
            table, lengths = table[owners], lengths[owners] - (starts[owners + 1] - 1 - np.array(rows))
            starts = np.arange(len(rows) + 1)
        expected = attention.paged_attention(
            f64(call.q)[rows],
            self.keys if keys is None else keys,
            self.values if values is None else values,
            table,
            lengths,
            starts,
            scale=call.scale,
            causal=self.request.causal,
            window=self.request.window,
        )
        # On a GPU a softmax weight is rounded to fp16 before it meets v, as tensor cores need.
        half_weights = self.target.activations is torch.float16
        limit = tolerance.attention(expected, self.request.head_dim, self.target.arithmetic, half_weights=half_weights)
        judge.assert_within(f64(out)[rows], expected.out, limit, f"{self.target.name} {what}")


def scene(
    target: Target,
    phase: str,
    queries: tuple[int, ...],
    lengths: tuple[int, ...],
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    **axes: Any,
) -> Scene:
    """A call of these query and KV lengths; ``axes`` are those of ``suites.routing.axes.call``."""
    shape = {"q_heads": 6, "kv_heads": 1, "head_dim": 256, "page_size": 16, "kv_dtype": "auto"} | axes
    request = describe(
        phase,
        max(queries),
        max(lengths),
        num_seqs=len(lengths),
        query_rows=sum(queries) if phase == "decode" else 0,
        **{"prefix": lengths != queries, **shape},
    )
    rng = inputs.generator(*queries, *lengths, request.head_dim, request.q_heads)
    stored = STORED.get(request.kv_dtype)
    spare = 3 if request.page_size < 256 else 1
    pages = inputs.paged(
        rng, target, lengths, request.page_size, request.kv_heads, request.head_dim, spare_blocks=spare
    )
    k, v = pages.k, pages.v
    keys, values = f64(k), f64(v)
    if stored is not None:
        (k, keys), (v, values) = (_quantised(tensor, stored, scale) for tensor, scale in ((k, k_scale), (v, v_scale)))
    q = target.put(inputs.normal(rng, sum(queries), request.q_heads, request.head_dim))
    call = AttentionCall(
        q=q,
        k_cache=k,
        v_cache=v,
        block_table=pages.block_table,
        seq_lens=pages.seq_lens,
        query_start=inputs.query_start(target, queries),
        query_lens=queries,
        lengths=lengths,
        scale=request.scale,
        k_scale=k_scale,
        v_scale=v_scale,
        out=target.unwritten(*q.shape),
    )
    if not request.prefix:
        call = replace(call, k=_tokens(k, call), v=_tokens(v, call))
    return Scene(target, request, call, keys, values)


def run_decided(made: Scene) -> tuple[torch.Tensor, RouteCounters]:
    """Decide, and carry out what was decided, with counters of its own."""
    counters = RouteCounters()
    return execute(decide(made.request), made.call, counters), counters


def _quantised(tensor: torch.Tensor, stored: torch.dtype, scale: float) -> tuple[torch.Tensor, F64]:
    """Codes in a strided view like the engine's, NaN codes where nothing lives, and the numbers they mean."""
    codes = fp8.encode(f64(tensor) / scale, FORMATS[stored])
    wide = torch.full((codes.shape[0], 2, *codes.shape[1:]), fp8.CANONICAL_NAN, dtype=torch.uint8)
    wide[:, 0] = torch.from_numpy(codes)
    return wide.to(tensor.device).view(stored)[:, 0], fp8.decode(codes, FORMATS[stored], scale)


def _tokens(cache: torch.Tensor, call: AttentionCall) -> torch.Tensor:
    """The keys (or values) of this call in the order of its rows, [T, Hkv, D]."""
    rows = []
    for sequence, length in enumerate(call.lengths):
        position = torch.arange(length, device=cache.device)
        block = call.block_table[sequence, (position // call.block_size).long()].long()
        rows.append(cache[block, position % call.block_size])
    return torch.cat(rows).contiguous()
