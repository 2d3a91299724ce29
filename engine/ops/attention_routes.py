"""Carries a routing decision out: each route does its own work around the native attention op, and counts itself.

What differs between routes is real work: whose block table is handed over, what is gathered or expanded first, how the
keys are cut, and which heads share a pass. No route takes another's place: what fails, raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from engine.ops import attention_fallback, functional
from engine.ops.attention_call import AttentionCall, RouteCounters, check_call
from engine.ops.persistent_rows import PersistentRows, Rows
from engine.routing import Decision, PartitionPlan, Route, RouteRequest

BRIDGE_PAGE = 784
"""Rows of a half page into which FP8 pages are expanded."""

ROW_TILE = 16
"""Kernels read keys in tiles of 16 rows, so rows after the last token are zero up to the next multiple."""

DENSE_TILE = 64

Run = Callable[[RouteRequest, AttentionCall, PartitionPlan | None], torch.Tensor]


def execute(decision: Decision, call: AttentionCall, counters: RouteCounters) -> torch.Tensor:
    """Run the decided route on the tensors it was decided for; returns [T, Hq, D] in the dtype of ``q``.

    Raises ``RouteRefused`` where there is no route, ``ValueError`` where the tensors are others than described, and
    ``RuntimeError`` where a live sequence does not fit into the plan.
    """
    route = decision.require()
    check_call(decision.request, call)
    if decision.plan is not None and not decision.request.capturing:
        decision.plan.check_replay(max(call.lengths, default=0))
    return run_route(route, decision.plan, decision.request, call, counters)


def run_route(
    route: Route, plan: PartitionPlan | None, request: RouteRequest, call: AttentionCall, counters: RouteCounters
) -> torch.Tensor:
    """Run one route whatever was decided, and count it: what a suite compares routes with."""
    out = _RUN[route](request, call, plan)
    counters.increment(route)
    return out


# ---- nothing to attend to, and the plain twin -----------------------------------------------------------------------


def _zero(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    return call.output().zero_()


def _plain(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    return attention_fallback.attend(call, causal=request.causal, window=request.window)


# ---- the one native op ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys and values as the op reads them, and what a decoded number is multiplied by."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0

    def of_head(self, head: int) -> _Keys:
        """One KV head."""
        return replace(self, k=self.k[:, :, head : head + 1], v=self.v[:, :, head : head + 1])


def _cache(call: AttentionCall) -> _Keys:
    return _Keys(call.k_cache, call.v_cache, call.k_scale, call.v_scale)


def _attend(
    request: RouteRequest,
    q: torch.Tensor,
    keys: _Keys,
    rows: Rows,
    plan: PartitionPlan | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    return functional.paged_attention(
        q,
        keys.k,
        keys.v,
        rows.block_table,
        rows.seq_lens,
        rows.query_start,
        scale=request.scale,
        causal=request.causal,
        window=request.window,
        k_scale=keys.k_scale,
        v_scale=keys.v_scale,
        partition=None if plan is None else plan.size,
        out=out,
    )


def _attend_by_head(
    request: RouteRequest, call: AttentionCall, keys: _Keys, rows: Rows, plan: PartitionPlan | None
) -> torch.Tensor:
    """Every query head in a call of its own, over the one KV head it reads."""
    out = call.output()
    for head in range(call.q.shape[1]):
        q = call.q[:, head : head + 1].contiguous()
        out[:, head : head + 1].copy_(_attend(request, q, keys.of_head(head // call.group), rows, plan))
    return out


def _run_heads(
    request: RouteRequest,
    call: AttentionCall,
    keys: _Keys,
    rows: Rows,
    plan: PartitionPlan | None,
    heads_together: bool,
) -> torch.Tensor:
    if heads_together:
        return _attend(request, call.q, keys, rows, plan, call.out)
    return _attend_by_head(request, call, keys, rows, plan)


def request_rows(call: AttentionCall) -> Rows:
    """The requests' own tables and lengths."""
    return Rows(call.block_table, call.seq_lens, call.query_start)


# ---- rows over the paged cache --------------------------------------------------------------------------------------


def _grouped(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    """All rows of one request in one pass over its keys.

    Two passes make the same cut twice and must agree bit by bit: the second reads what the first may have disturbed.
    """
    rows = grouped_rows(call)
    if rows.block_table.shape[0] != 1:
        raise ValueError(
            f"grouped verify reads the block table of its one request, saw {rows.block_table.shape[0]} rows: hand over "
            f"the original table, not the q-expanded one"
        )
    out = _attend(request, call.q, _cache(call), rows, plan, call.out)
    if not request.one_pass and not torch.equal(out, _attend(request, call.q, _cache(call), rows, plan)):
        raise RuntimeError("grouped verify: two passes over the same keys differ")
    return out


def grouped_rows(call: AttentionCall) -> Rows:
    """What grouped verify is handed: the original row of its one request, whatever persistent rows there are."""
    return request_rows(call)


def _small_q(heads_together: bool) -> Run:
    def run(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
        """Each query row as a decode sequence of its own length."""
        return _run_heads(request, call, _cache(call), expanded_rows(request, call), plan, heads_together)

    return run


def expanded_rows(request: RouteRequest, call: AttentionCall) -> Rows:
    """The q-expanded table and lengths: persistent buffers, refreshed before the call, or buffers of this call."""
    count = call.q.shape[0]
    if call.rows is not None:
        return call.rows.view(count)
    if request.capturing:
        raise RuntimeError("small q under capture needs persistent rows: pass AttentionCall.rows")
    own = PersistentRows(count, call.block_table.shape[1], call.q.device)
    return own.refresh(call.query_lens, call.lengths, call.block_table, count)


def _decode(heads_together: bool) -> Run:
    def run(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
        return _run_heads(request, call, _cache(call), request_rows(call), plan, heads_together)

    return run


def _paged(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    return _attend(request, call.q, _cache(call), request_rows(call), plan, call.out)


# ---- keys gathered or expanded first --------------------------------------------------------------------------------


def gather_dense(cache: torch.Tensor, table: torch.Tensor, length: int, *, tile: int = ROW_TILE) -> torch.Tensor:
    """The pages of one sequence in order as one block [1, length rounded up to ``tile``, Hkv, D], the tail zero."""
    pages = -(-length // cache.shape[1])
    room = -(-length // tile) * tile
    bits = cache.view(torch.uint8) if cache.element_size() == 1 else cache  # FP8 tensors cannot be indexed
    dense = bits.new_empty((1, room, *bits.shape[2:]))
    dense[0, :length].copy_(bits.index_select(0, table[:pages].long()).flatten(0, 1)[:length])
    dense[0, length:].zero_()
    return dense.view(cache.dtype)


def _one_page(call: AttentionCall) -> Rows:
    """A table for keys that lie in order as one block."""
    return replace(request_rows(call), block_table=torch.zeros(1, 1, dtype=torch.int32, device=call.q.device))


def _gather(heads_together: bool) -> Run:
    def run(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
        """Pages gathered into dense keys and values; ``plan`` cuts them where the route does."""
        keys, values = (
            gather_dense(cache, call.block_table[0], call.lengths[0]) for cache in (call.k_cache, call.v_cache)
        )
        return _run_heads(request, call, _Keys(keys, values), _one_page(call), plan, heads_together)

    return run


def expand_fp8(codes: torch.Tensor, scale: float, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """FP8 codes as numbers: decoded, multiplied by ``scale`` in float32, rounded once."""
    return (codes.to(torch.float32) * scale).to(dtype)


def _expanded(call: AttentionCall, tile: int) -> _Keys:
    """The FP8 pages of one sequence as halves in order, zero after the last token up to a multiple of ``tile``."""
    table, length = call.block_table[0], call.lengths[0]
    return _Keys(
        expand_fp8(gather_dense(call.k_cache, table, length, tile=tile), call.k_scale),
        expand_fp8(gather_dense(call.v_cache, table, length, tile=tile), call.v_scale),
    )


def _bridge_dense(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    """FP8 pages expanded into one dense block; each query head by itself over it."""
    return _attend_by_head(request, call, _expanded(call, DENSE_TILE), _one_page(call), plan)


def _bridge_paged(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    """FP8 pages expanded into half pages of ``BRIDGE_PAGE`` rows; the paged kernel reads those."""
    dense = _expanded(call, BRIDGE_PAGE)
    pages = dense.k.shape[1] // BRIDGE_PAGE
    k, v = (tensor.view(pages, BRIDGE_PAGE, *tensor.shape[2:]) for tensor in (dense.k, dense.v))
    table = torch.arange(pages, dtype=torch.int32, device=call.q.device)[None]
    return _attend(request, call.q, _Keys(k, v), replace(request_rows(call), block_table=table), plan, call.out)


# ---- keys of this call ----------------------------------------------------------------------------------------------


def _fresh(call: AttentionCall) -> _Keys:
    if call.k is None or call.v is None:
        raise ValueError("prefill without a prefix reads this call's own keys and values: pass AttentionCall.k and .v")
    return _Keys(call.k, call.v)


def _dense_exact(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    """Each sequence over its own keys as one dense block, each query head by itself."""
    fresh, out = _fresh(call), call.output()
    table = torch.zeros(1, 1, dtype=torch.int32, device=call.q.device)
    for first, last in pairwise([0, *accumulate(call.query_lens)]):
        if first == last:
            continue
        bounds = torch.tensor([0, last - first], dtype=torch.int32, device=call.q.device)
        own = replace(call, q=call.q[first:last], out=out[first:last])
        keys = _Keys(fresh.k[None, first:last], fresh.v[None, first:last])
        _attend_by_head(request, own, keys, Rows(table, bounds[1:], bounds), plan)
    return out


def _dense_general(request: RouteRequest, call: AttentionCall, plan: PartitionPlan | None) -> torch.Tensor:
    """All sequences in one call: every token of this call is a page of one row, and the table counts them off."""
    fresh = _fresh(call)
    count = torch.arange(max(call.query_lens, default=0), dtype=torch.int32, device=call.q.device)
    table = (call.query_start[:-1, None] + count).clamp(max=call.q.shape[0] - 1).to(torch.int32)
    keys = _Keys(fresh.k[:, None], fresh.v[:, None])
    return _attend(request, call.q, keys, replace(request_rows(call), block_table=table), plan, call.out)


_RUN: dict[Route, Run] = {
    Route.PROFILE_ZERO: _zero,
    Route.DIAGNOSTIC_REFERENCE: _plain,
    Route.GROUPED_VERIFY: _grouped,
    Route.SMALLQ_XQA: _small_q(heads_together=True),
    Route.SMALLQ_SCALAR: _small_q(heads_together=False),
    Route.PREFILL_GATHER_GQA: _gather(heads_together=True),
    Route.PREFILL_GATHER_SPLIT_KV: _gather(heads_together=True),
    Route.PREFILL_GATHER_EXACT: _gather(heads_together=False),
    Route.PREFILL_BRIDGE_DENSE: _bridge_dense,
    Route.PREFILL_BRIDGE_PAGED: _bridge_paged,
    Route.PREFILL_PAGED: _paged,
    Route.PREFILL_DENSE_EXACT: _dense_exact,
    Route.PREFILL_DENSE: _dense_general,
    Route.DECODE_XQA: _decode(heads_together=True),
    Route.DECODE_SCALAR: _decode(heads_together=False),
    Route.PLATFORM_DEFAULT: _plain,
    Route.DECLARED_FALLBACK: _plain,
}
