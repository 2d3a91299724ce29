"""What a route is handed, what a replay sees, and what must not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.model.graphs import collector_held_off
from engine.ops.attention_call import RouteCounters, check_call, split_kv_cache
from engine.ops.attention_routes import execute, expand_fp8, gather_dense, run_route
from engine.ops.persistent_rows import PersistentRows
from engine.routing import Route, RouteRefused, decide
from engine.routing.plan import partition_plan
from suites.kernels import inputs
from suites.oracles import judge
from suites.recording import Record
from suites.routing.scene import run_decided, scene
from suites.targets import CPU, Target, array, f64

pytestmark = pytest.mark.group("routing: hand-over")

E5M2 = "fp8_e5m2"


# ---- what a route is handed -----------------------------------------------------------------------------------------


def test_grouped_verify_reads_the_requests_own_table(targets: tuple[Target, ...]) -> None:
    """Persistent q-expanded rows of an earlier step lie about, naming blocks that hold NaN: they must not be read."""
    for target in targets:
        made = scene(target, "verify", (8,), (300,))
        stale = PersistentRows(8, made.call.block_table.shape[1], target.name)
        stale.block_table.fill_(int(made.call.block_table[0, -1]))  # the spare block: all poison
        stale.seq_lens.fill_(300)
        call = replace(made.call, rows=stale)
        plan = partition_plan(made.request, Route.GROUPED_VERIFY)
        made.check(run_route(Route.GROUPED_VERIFY, plan, made.request, call, RouteCounters()), "grouped")


def test_grouped_verify_refuses_an_expanded_table(targets: tuple[Target, ...]) -> None:
    for target in targets:
        made = scene(target, "verify", (1,) * 8, (300,) * 8)
        with pytest.raises(ValueError, match="one request, saw 8 rows"):
            run_route(Route.GROUPED_VERIFY, None, made.request, made.call, RouteCounters())


@pytest.mark.parametrize("blocks", [2, 3])
def test_keys_and_values_of_one_allocation(blocks: int, targets: tuple[Target, ...]) -> None:
    """A cache of two blocks has two axes of length two: the engine's layout is [num_blocks, 2, ...], and it wins."""
    for target in targets:
        rng = inputs.generator(blocks)
        cache = target.put(inputs.normal(rng, blocks, 2, 16, 1, 256))
        keys, values = split_kv_cache(cache)
        assert keys.shape == (blocks, 16, 1, 256)
        judge.assert_bits_equal(array(keys), array(cache)[:, 0], "keys")
        judge.assert_bits_equal(array(values), array(cache)[:, 1], "values")


def test_attention_over_two_blocks(targets: tuple[Target, ...]) -> None:
    """End to end: the axis guess decides what the keys are."""
    for target in targets:
        made = scene(target, "decode", (1,), (30,))
        used = made.call.block_table[0, :2].long()
        cache = torch.stack((made.call.k_cache[used], made.call.v_cache[used]), dim=1)
        keys, values = split_kv_cache(cache)
        table = torch.tensor([[0, 1]], dtype=torch.int32, device=cache.device)
        call = replace(made.call, k_cache=keys, v_cache=values, block_table=table)
        two = replace(made, call=call, keys=f64(cache[:, 0]), values=f64(cache[:, 1]))
        out, _ = run_decided(two)
        two.check(out, "two blocks")


def test_gathered_keys_in_order_with_a_zero_tail(targets: tuple[Target, ...]) -> None:
    """Rows after the last token are zero: a tile that reads them multiplies by nothing, never by NaN."""
    for target in targets:
        made = scene(target, "prefill", (32,), (45,), page_size=7)
        dense = array(gather_dense(made.call.k_cache, made.call.block_table[0], 45))
        assert dense.shape == (1, 48, 1, 256)
        cache, table = array(made.call.k_cache), array(made.call.block_table)[0]
        for token in range(45):
            judge.assert_bits_equal(dense[0, token], cache[table[token // 7], token % 7], f"token {token}")
        assert not dense[0, 45:].any()


def test_an_expanded_tail_is_zero() -> None:
    """NaN codes lie after the last token; what is expanded ends in zeros, or 0 * NaN would reach the output."""
    made = scene(CPU, "prefill", (32,), (45,), kv_dtype=E5M2, page_size=16)
    for tile in (16, 64, 784):
        dense = gather_dense(made.call.k_cache, made.call.block_table[0], 45, tile=tile)
        halves = expand_fp8(dense, made.call.k_scale)
        assert halves.shape[1] % tile == 0
        assert not halves[0, 45:].any()
        assert bool(torch.isfinite(halves).all())


def test_expanded_e5m2_is_exact() -> None:
    """With scale 1 every code becomes the half that it is a prefix of: all 256 codes, bit by bit."""
    codes = torch.arange(256, dtype=torch.uint8)
    halves = expand_fp8(codes.view(torch.float8_e5m2), 1.0)
    finite = torch.isfinite(halves)
    wanted = (codes.to(torch.int32) << 8).to(torch.int16)
    assert torch.equal(halves.view(torch.int16)[finite], wanted[finite])
    assert int(finite.sum()) == 256 - 8


def test_padded_rows_read_nothing_and_write_zeros(targets: tuple[Target, ...]) -> None:
    """A graph of six rows holds five: the last has length 0 and an all-zero table row."""
    for target in targets:
        made = scene(target, "verify", (3, 2), (8, 7))
        rows = PersistentRows(6, made.call.block_table.shape[1], target.name)
        view = rows.refresh((3, 2, 0), (8, 7, 0), torch.cat((made.call.block_table, made.call.block_table[:1])), 6)
        assert view.seq_lens.tolist() == [6, 7, 8, 6, 7, 0]
        assert not view.block_table[5].any()
        padding = torch.full((1, 6, 256), float("nan"), dtype=target.activations, device=target.name)
        q = torch.cat((made.call.q, padding))
        call = replace(made.call, q=q, out=target.unwritten(*q.shape), rows=rows)
        out = run_route(Route.SMALLQ_SCALAR, None, made.request, call, RouteCounters())
        made.check(out[:5], "live rows")
        assert not out[5].any(), "the padded row is not zero"


# ---- capture and replay ---------------------------------------------------------------------------------------------


def test_a_replay_sees_new_lengths_at_the_same_addresses(targets: tuple[Target, ...]) -> None:
    """Captured with length q, replayed with others: the decision and the addresses stay, the answers follow."""
    for target in targets:
        made = scene(target, "verify", (4,), (600,))
        captured = replace(made.request, capturing=True, kv_len=4, prefix=False, workspace_capacity=2048)
        decision = decide(captured)
        assert decision.route is Route.SMALLQ_SCALAR
        rows = PersistentRows(4, made.call.block_table.shape[1], target.name)
        rows.refresh((4,), (4,), made.call.block_table)
        assert rows.seq_lens.tolist() == [1, 2, 3, 4]
        addresses = (rows.block_table.data_ptr(), rows.seq_lens.data_ptr(), rows.query_start.data_ptr())
        call = replace(made.call, rows=rows)
        counters = RouteCounters()
        for length in (600, 8, 127):
            assert decision.plan is not None
            decision.plan.check_replay(length)
            view = rows.refresh((4,), (length,), made.call.block_table)
            assert view.seq_lens.tolist() == list(range(length - 3, length + 1))
            out = run_route(decision.require(), decision.plan, captured, call, counters)
            live = replace(
                made, call=replace(call, lengths=(length,), seq_lens=target.put(f64(view.seq_lens[3:])).to(torch.int32))
            )
            live.check(out, f"replay at {length}")
        assert counters[Route.SMALLQ_SCALAR] == 3
        assert addresses == (rows.block_table.data_ptr(), rows.seq_lens.data_ptr(), rows.query_start.data_ptr())


def test_a_graph_replays_bit_by_bit(gpu: Target) -> None:
    """The real thing: captured once, lengths changed in place, bitwise equal to eager."""
    made = scene(gpu, "verify", (4,), (600,))
    request = replace(made.request, capturing=True, kv_len=4, prefix=False, workspace_capacity=2048)
    decision = decide(request)
    rows = PersistentRows(4, made.call.block_table.shape[1], gpu.name)
    rows.refresh((4,), (600,), made.call.block_table)
    call = replace(made.call, rows=rows, out=gpu.unwritten(*made.call.q.shape))
    run_route(decision.require(), decision.plan, request, call, RouteCounters())
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph):
        run_route(decision.require(), decision.plan, request, call, RouteCounters())
    for length in (600, 595, 129, 4):
        rows.refresh((4,), (length,), made.call.block_table)
        graph.replay()
        replayed = array(call.output())
        eager = array(run_route(decision.require(), decision.plan, request, replace(call, out=None), RouteCounters()))
        judge.assert_bits_equal(replayed, eager, f"replay at {length}")


# ---- what must not run ----------------------------------------------------------------------------------------------


def test_a_refused_call_runs_nothing(targets: tuple[Target, ...]) -> None:
    for target in targets:
        made = scene(target, "decode", (1,), (300,), backend=True, head_dim=80, q_heads=4)
        counters = RouteCounters()
        with pytest.raises(RouteRefused, match=r"layer\.head_dim"):
            execute(decide(made.request), made.call, counters)
        assert counters.by_name() == {}
        assert made.call.out is not None
        assert made.call.out.isnan().all(), "a refused call wrote its output"


@pytest.mark.parametrize(
    ("axis", "axes"),
    [
        ("q_len", {"q_len": 7}),
        ("kv_len", {"kv_len": 299}),
        ("page_size", {"page_size": 32}),
        ("q_heads", {"q_heads": 8}),
        ("head_dim", {"head_dim": 128}),
        ("num_seqs", {"num_seqs": 2}),
        ("scale", {"scale": 0.1}),
        ("alibi", {"alibi": True}),
    ],
)
def test_a_decision_for_other_tensors_is_refused(axis: str, axes: dict[str, Any]) -> None:
    made = scene(CPU, "verify", (8,), (300,))
    with pytest.raises(ValueError, match=f"made for {axis} "):
        check_call(replace(made.request, **axes), made.call)


def test_a_cache_of_another_format_is_refused() -> None:
    made = scene(CPU, "verify", (8,), (300,))
    with pytest.raises(ValueError, match=r"the cache is torch\.float32"):
        check_call(replace(made.request, kv_dtype=E5M2), made.call)


def test_a_failing_route_counts_nothing() -> None:
    """Dense prefill without its own keys: an error, no other kernel, no count."""
    made = scene(CPU, "prefill", (64,), (64,))
    counters = RouteCounters()
    with pytest.raises(ValueError, match="own keys and values"):
        execute(decide(made.request), replace(made.call, k=None), counters)
    assert counters.by_name() == {}


def test_small_q_under_capture_without_buffers_is_an_error() -> None:
    made = scene(CPU, "verify", (8,), (300,))
    with pytest.raises(RuntimeError, match="needs persistent rows"):
        run_route(Route.SMALLQ_SCALAR, None, replace(made.request, capturing=True), made.call, RouteCounters())


def test_a_buffer_that_is_too_small_is_an_error_before_it_is_written() -> None:
    made = scene(CPU, "verify", (8,), (300,))
    rows = PersistentRows(4, 40)
    with pytest.raises(RuntimeError, match="persistent buffer capacity is 4"):
        rows.refresh((8,), (300,), made.call.block_table)
    with pytest.raises(RuntimeError, match="persistent buffer capacity is 2"):
        PersistentRows(8, 2).refresh((8,), (300,), made.call.block_table)
    assert not rows.seq_lens.any()


def test_counters_are_the_callers_own(record: Record) -> None:
    """Two counters do not know each other: nothing about routes is global."""
    made = scene(CPU, "decode", (1,), (30,))
    first, second = RouteCounters(), RouteCounters()
    execute(decide(made.request), made.call, first)
    execute(decide(made.request), made.call, first)
    assert (first[Route.DECODE_XQA], second[Route.DECODE_XQA]) == (2, 0)
    record.metric("routes", len(Route), "routes")
