"""CUDA kernels beside a copy of the same run: shares of its bandwidth, grouped verification beside eight decodes.

    python -m suites.kernels.bench_kernels [--rounds N] [--only TEXT] [--json out.json]

Each arm is one captured graph, replayed with a cold cache (a large write between), all arms in turns within a round. A
share is the arm's bytes a second over the copy's (which counts reads and writes), with a 95 % interval over rounds.
Beside it stands what the compiler and the data sheet say of a V100: warps that are resident, and the floor of that same
call. Those are predictions. On a newer card the kernels run through their compute_70 PTX: right answers, and speed only
of what memory bounds, never a V100's speed.
This is a benchmark: times assert nothing and this is no test. `suites/kernels` checks the answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.model.graphs import collector_held_off
from native import floors, loader, ops_cuda
from native.floors import Floor
from native.kernel_floors import kernel_floor
from native.resources import ResourceRow, resource_table
from suites.sampling.timing import Ratio, ratio

COPY_BYTES = 1 << 30
FLUSH_BYTES = 256 << 20  # several times any second-level cache
CONTEXT = 32768
QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 24, 4, 256, 1648
FP8 = torch.float8_e4m3fn
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Arm:
    """One call: ``kernel`` is the one that does its work, ``floor`` what that call moves and computes."""

    name: str
    kernel: str
    floor: Floor
    call: Call


class Bench:
    """Graphs of the arms, and how long a replay takes with a cold cache."""

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def add(self, name: str, call: Call) -> None:
        call()  # loads kernels, outside of the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with collector_held_off(), torch.cuda.graph(graph):
            call()
        self._graphs[name] = graph

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Microseconds by arm: every round times every arm once, forwards and backwards in turn."""
        samples: dict[str, list[float]] = {name: [] for name in self._graphs}
        for turn in range(rounds + 1):
            for name in self._graphs if turn % 2 else reversed(self._graphs):
                self._flush.fill_(turn % 251)
                first, last = _event(), _event()
                first.record()
                self._graphs[name].replay()
                last.record()
                last.synchronize()
                if turn > 0:  # the first round warms up
                    samples[name].append(float(first.elapsed_time(last)) * 1e3)
        return samples


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _attention(device: torch.device, cache_type: torch.dtype, queries: int, length: int = CONTEXT) -> Arm:
    """``queries`` rows of one sequence of ``length`` keys; eight rows are a grouped verification."""
    blocks = -(-length // PAGE)
    cache = torch.randn(blocks, 2, PAGE, KV_HEADS, HEAD_DIM, device=device).to(cache_type)
    table = torch.randperm(blocks, device=device).to(torch.int32).view(1, blocks)
    seq_lens = torch.tensor([length], dtype=torch.int32, device=device)
    start = torch.tensor([0, queries], dtype=torch.int32, device=device)
    q = torch.randn(queries, QUERY_HEADS, HEAD_DIM, device=device).to(torch.float16)
    out = torch.empty_like(q)

    def call() -> object:
        k, v = cache[:, 0], cache[:, 1]
        return ops_cuda.paged_attention(q, k, v, table, seq_lens, start, scale=HEAD_DIM**-0.5, out=out)

    wide = cache_type is torch.float16
    tiles = 1 if queries == 1 else 3
    kernel = f"paged_attention_d{HEAD_DIM}_m{tiles}_{'f16' if wide else 'fp8'}"
    floor = floors.paged_attention(queries, length, QUERY_HEADS, KV_HEADS, HEAD_DIM, kv_bytes=2 if wide else 1)
    name = f"{'decode' if queries == 1 else f'grouped q{queries}'} {'FP16' if wide else 'E4M3'} L{length}"
    return Arm(name, kernel, floor, call)


def _eight_decodes(arm: Arm) -> Arm:
    """What a grouped verification replaces: its rows one after another."""

    def call() -> None:
        for _ in range(8):
            arm.call()

    floor = Floor(arm.floor.op, 8 * arm.floor.bytes_moved, 8 * arm.floor.tensor_ops, 8 * arm.floor.fp32_ops)
    return Arm(arm.name.replace("decode", "eight decodes"), arm.kernel, floor, call)


def _rows(device: torch.device) -> list[Arm]:
    rows, hidden, width = 8192, 5120, 8704
    x = torch.randn(rows, hidden, device=device).to(torch.float16)
    weight = torch.ones(hidden, device=device)
    gate_up = torch.randn(rows, 2 * width, device=device).to(torch.float16)
    normed, gated = torch.empty_like(x), torch.empty(rows, width, dtype=torch.float16, device=device)
    matrix = torch.randn(17408, hidden, device=device).to(torch.float16)
    few = x[:8].contiguous()
    return [
        Arm(
            "rms_norm 8192 x 5120",
            "rms_norm_f16",
            floors.rms_norm(rows, hidden),
            lambda: ops_cuda.rms_norm(x, weight, 1e-5, out=normed),
        ),
        Arm(
            "silu_mul 8192 x 8704",
            "silu_mul_vector_f16",
            floors.silu_mul(rows, width),
            lambda: ops_cuda.silu_mul(gate_up, out=gated),
        ),
        Arm(
            "linear FP16 8 x 17408 x 5120",
            "linear_f16_m1",
            floors.linear(8, 17408, hidden, 16),
            lambda: ops_cuda.linear_f16(few, matrix),
        ),
    ]


def _arms(device: torch.device) -> list[Arm]:
    decodes = [_attention(device, kind, 1) for kind in (torch.float16, FP8)]
    grouped = [_attention(device, kind, 8) for kind in (torch.float16, FP8)]
    long = [_attention(device, kind, queries, 131072) for kind in (torch.float16, FP8) for queries in (1, 8)]
    return [*decodes, *grouped, *(_eight_decodes(arm) for arm in decodes), *long, *_rows(device)]


def _print_arm(arm: Arm, samples: dict[str, list[float]], resources: dict[str, ResourceRow]) -> None:
    share = ratio(samples["copy"], samples[arm.name])
    scale = arm.floor.bytes_moved / (2 * COPY_BYTES)
    share = Ratio(share.value * scale, share.low * scale, share.high * scale)
    took = statistics.median(samples[arm.name])
    row = resources.get(arm.kernel)
    warps = "not built here" if row is None else f"{row.warps_per_multiprocessor} warps an SM"
    print(
        f"{arm.name:32} {took:9.1f} us  {arm.floor.bytes_moved / took * 1e-6:5.2f} TB/s  share of the copy {share} | "
        f"V100 prediction: floor {arm.floor.seconds() * 1e6:7.1f} us ({arm.floor.bound()}), {warps} ({arm.kernel})",
        flush=True,
    )


def _print_kernels(table: tuple[ResourceRow, ...]) -> None:
    """Every kernel's floor and occupancy on a V100; nothing here is measured."""
    print("Predictions for a V100, from the data sheet and the compiler; nothing here is measured:")
    for row in table:
        floor, call = kernel_floor(row.kernel)
        print(
            f"  {row.kernel:32} floor {floor.seconds() * 1e6:8.2f} us ({floor.bound()}) of {call}; "
            f"{row.registers} registers, {row.static_shared + row.dynamic_shared} B shared, "
            f"{row.spill_stores + row.spill_loads} B spilt, {row.warps_per_multiprocessor} warps an SM "
            f"by {row.limited_by}"
        )


def main(argv: list[str] | None = None) -> int:
    """Measure and print; write every sample where asked."""
    parser = argparse.ArgumentParser(prog="python -m suites.kernels.bench_kernels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="times each arm is measured (default: %(default)s)")
    parser.add_argument("--only", default="", help="arms whose name holds this text")
    parser.add_argument("--predictions", action="store_true", help="print the table of V100 floors alone; needs no GPU")
    parser.add_argument("--json", type=Path, help="write all samples here")
    args = parser.parse_args(argv)
    table = resource_table(loader.library_path().parent)
    if args.predictions:
        _print_kernels(table)
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device: run it on a GPU machine, or with --predictions", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    code = ops_cuda.load(device.index)
    name = torch.cuda.get_device_name(device)
    print(f"{name}, {code}, torch {torch.__version__}, library {loader.library_sha256()[:12]}, {args.rounds} rounds")
    torch.manual_seed(0)
    arms = [arm for arm in _arms(device) if args.only in arm.name]
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bench = Bench(device)
    bench.add("copy", lambda: target.copy_(source))
    for arm in arms:
        bench.add(arm.name, arm.call)
    samples = bench.measure(args.rounds)
    copied = statistics.median(samples["copy"])
    print(f"copy of {COPY_BYTES} bytes: {copied:.1f} us, {2 * COPY_BYTES / copied * 1e-6:.2f} TB/s read and written")
    resources = {row.kernel: row for row in table}
    for arm in arms:
        _print_arm(arm, samples, resources)
    for kind in ("FP16", "E4M3"):
        eight, group = f"eight decodes {kind} L{CONTEXT}", f"grouped q8 {kind} L{CONTEXT}"
        if {eight, group} <= samples.keys():
            print(f"grouped q8 {kind}: {ratio(samples[eight], samples[group])} times faster than eight decodes")
    _print_kernels(table)
    if args.json is not None:
        record = {"device": name, "library_sha256": loader.library_sha256(), "unit": "us", "samples": samples}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
