"""CUDA graphs: captured once, replayed after inputs, lengths and tables changed in place, bitwise equal to eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine.model.graphs import collector_held_off
from native import ops_cuda
from suites.kernels import inputs
from suites.kernels.test_sm70_linear import Nvfp4
from suites.oracles import judge
from suites.oracles.arrays import I64
from suites.targets import Target, array

pytestmark = pytest.mark.group("sm70 graphs")

BLOCK, TABLE = 16, 300  # tokens per block, blocks per sequence: 4800 tokens of capacity
LENGTHS = (8, 127, 128, 129, 2049, 4097, 4800, 33)


def _capture(run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of one call and the tensor it writes, warmed on a side stream as torch asks."""
    ops_cuda.load(torch.cuda.current_device())
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph):
        out = run()
    return graph, out


def _replay_equals_eager(run: Callable[[], torch.Tensor], change: Callable[[int], None], steps: int) -> None:
    graph, captured = _capture(run)
    for step in range(steps):
        change(step)
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        replayed = array(captured).copy()
        judge.assert_bits_equal(replayed, array(run()), f"replay {step}")
        assert np.isfinite(replayed).all()


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("cache", ["f16", "e4m3"])
def test_attention_reads_lengths_and_tables_from_the_device(gpu: Target, rows: int, cache: str) -> None:
    """One graph serves every length up to its capacity, at block, partition and tile boundaries."""
    rng = inputs.generator(rows)
    storage = gpu.put(inputs.normal(rng, 2 * TABLE, 2, BLOCK, 1, 128))
    if cache == "e4m3":
        storage = ops_cuda.fp8_encode(storage, torch.float8_e4m3fn)
    q = gpu.put(inputs.normal(rng, rows, 6, 128))
    table = gpu.put(rng.permutation(2 * TABLE)[:TABLE].astype(np.int32)[None])
    seq_lens = gpu.put(np.array([rows], dtype=np.int32))
    start = inputs.query_start(gpu, (rows,))

    def run() -> torch.Tensor:
        return ops_cuda.paged_attention(
            q, storage[:, 0], storage[:, 1], table, seq_lens, start, scale=1 / math.sqrt(128)
        )

    def change(step: int) -> None:
        seq_lens.fill_(LENGTHS[step])
        table.copy_(gpu.put(rng.permutation(2 * TABLE)[:TABLE].astype(np.int32)[None]))
        q.copy_(gpu.put(inputs.normal(rng, rows, 6, 128)))

    _replay_equals_eager(run, change, len(LENGTHS))
    ops_cuda.raise_on_fault(q.device)


def test_padded_requests_of_a_graph(gpu: Target) -> None:
    """Requests of 3, 2 and 0 query rows with lengths 8, 7 and 0, later other lengths: padding stays zero."""
    rng = inputs.generator(3)
    storage = gpu.put(inputs.normal(rng, 8, 2, BLOCK, 1, 64))
    q = gpu.put(inputs.normal(rng, 6, 4, 64))
    table = gpu.put(np.array([[1, 2], [3, 4], [0, 0], [0, 0]], dtype=np.int32))
    seq_lens = gpu.put(np.array([8, 7, 0, 0], dtype=np.int32))
    start = inputs.query_start(gpu, (3, 2, 0, 1))

    def run() -> torch.Tensor:
        return ops_cuda.paged_attention(q, storage[:, 0], storage[:, 1], table, seq_lens, start, scale=0.125)

    def change(step: int) -> None:
        seq_lens.copy_(gpu.put(np.array([8 + 3 * step, 7 + step, 0, 0], dtype=np.int32)))

    graph, captured = _capture(run)
    for step in range(4):
        change(step)
        graph.replay()
        torch.cuda.synchronize()
        replayed = array(captured).copy()
        judge.assert_bits_equal(replayed, array(run()), f"replay {step}")
        assert not replayed[5].any(), "the padded row"


def test_a_length_beyond_the_table_is_reported_not_read(gpu: Target) -> None:
    """Capacity overflow under a graph: nothing outside is touched, and the next check names it."""
    storage = gpu.put(np.zeros((4, 2, BLOCK, 1, 64)))
    q, table = gpu.put(np.zeros((1, 2, 64))), gpu.put(np.array([[0, 1]], dtype=np.int32))
    seq_lens = gpu.put(np.array([32], dtype=np.int32))
    start = inputs.query_start(gpu, (1,))
    graph, _ = _capture(
        lambda: ops_cuda.paged_attention(q, storage[:, 0], storage[:, 1], table, seq_lens, start, scale=1.0)
    )
    graph.replay()
    ops_cuda.raise_on_fault(q.device)
    seq_lens.fill_(33)
    graph.replay()
    with pytest.raises(ValueError, match="33"):
        ops_cuda.raise_on_fault(q.device)


def test_the_store_writes_this_steps_slots(gpu: Target) -> None:
    """Slots change between replays, -1 among them: the whole cache equals the eager one, PAD rows unwritten."""
    rng = inputs.generator(5)
    qkv = gpu.put(inputs.normal(rng, 8, 12 * 64))
    table = gpu.put(inputs.cos_sin_table(100, 64), torch.float32)
    positions, slots = gpu.put(np.zeros(8, dtype=np.int32)), gpu.put(np.full(8, -1))
    cache = gpu.put(np.full((5, 2, 16, 2, 64), 77.0))

    def run(into: torch.Tensor = cache) -> torch.Tensor:
        return ops_cuda.rope_store_kv(qkv, table, positions, into[:, 0], into[:, 1], slots, interleaved=False)

    graph, _ = _capture(run)
    for step in range(16):
        accepted = step % 8 + 1
        chosen: I64 = rng.permutation(80)[:8]
        chosen[accepted:] = -1
        slots.copy_(gpu.put(chosen))
        positions.copy_(gpu.put((np.arange(8) + step).astype(np.int32)))
        qkv.copy_(gpu.put(inputs.normal(rng, 8, 12 * 64)))
        eager = cache.clone()
        run(eager)
        graph.replay()
        torch.cuda.synchronize()
        judge.assert_bits_equal(array(cache), array(eager), f"step {step}, {accepted} accepted")


def _products(gpu: Target) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    rng = inputs.generator(6)
    dense = gpu.put(inputs.normal(rng, 96, 512, sigma=0.1))
    packed = Nvfp4.make(48, 512).pack(gpu)
    codes, scales, zeros = (
        gpu.put(part)
        for part in (
            rng.integers(0, 16, size=(40, 512), dtype=np.uint8),
            rng.uniform(0.01, 0.05, size=(40, 4)).astype(np.float16),
            rng.integers(0, 16, size=(40, 4), dtype=np.uint8),
        )
    )
    int4 = ops_cuda.pack_int4(codes, scales, zeros)
    norm = gpu.put(inputs.normal(rng, 512), torch.float32)
    return {
        "linear_f16": lambda x: ops_cuda.linear_f16(x, dense),
        "linear_nvfp4": lambda x: ops_cuda.linear_nvfp4(x, packed),
        "linear_int4": lambda x: ops_cuda.linear_int4(x, int4),
        "dense_logits": lambda x: ops_cuda.dense_logits(x, dense),
        "rms_norm": lambda x: ops_cuda.rms_norm(x, norm, 1e-5),
        "silu_mul": lambda x: ops_cuda.silu_mul(x),
    }


@pytest.mark.parametrize("op", ["linear_f16", "linear_nvfp4", "linear_int4", "dense_logits", "rms_norm", "silu_mul"])
@pytest.mark.parametrize("rows", [1, 8, 17])
def test_rowwise_ops(gpu: Target, op: str, rows: int) -> None:
    rng = inputs.generator(rows)
    call = _products(gpu)[op]
    x = gpu.put(inputs.normal(rng, rows, 512))

    def change(step: int) -> None:
        x.copy_(gpu.put(inputs.normal(rng, rows, 512, sigma=0.5 + step)))

    _replay_equals_eager(lambda: call(x), change, 3)


def test_a_first_load_inside_a_capture_is_refused(gpu: Target) -> None:
    """Loading compiles and synchronises: where a device is not loaded yet, a capture says so instead of breaking."""
    from native.cuda_bindings import launch

    loaded = set(launch._loaded_devices)
    launch._loaded_devices.clear()
    x, norm = gpu.put(np.ones((1, 64))), gpu.put(np.ones(64), torch.float32)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.mul_(1)  # something to capture: torch warns of an empty graph
            with pytest.raises(RuntimeError, match="not in a capture"):
                ops_cuda.rms_norm(x, norm, 1e-5)
    finally:
        launch._loaded_devices.update(loaded)
