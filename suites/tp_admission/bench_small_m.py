"""The two NVFP4 kernels beside each other at the widths of a TP 4 rank: `python -m suites.tp_admission.bench_small_m`.

Both multiply the same weights in turn, on the CPU (one thread) and on a GPU where there is one; there are several
copies of a matrix, more than a cache holds. The ratio is the small-M kernel's median over the packed kernel's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from engine.linear.admission import Admitted, LinearKernel, Split, admit, reference_projections
from engine.ops import functional
from engine.ops.bound import set_threads
from engine.ops.functional import FEW_ROWS, PackedNvfp4
from engine.ops.placement import load_kernels
from suites.tp_admission.packed_weights import Nvfp4Weights

TP = 4
ROWS = (1, 2, 4, FEW_ROWS)
ROUNDS = 15
CACHE_BYTES = {"cpu": 48 << 20, "cuda": 200 << 20}
BYTES_A_WEIGHT = 4.5 / 8


def promoted() -> list[Admitted]:
    """The rows of the admission table that the small-M kernel takes."""
    answers = [admit(one, TP) for one in reference_projections() if one.split is not Split.REPLICATED]
    return [one for one in answers if isinstance(one, Admitted) and one.kernel is LinearKernel.SMALL_M]


def microseconds(device: str, weights: Sequence[PackedNvfp4], rows: int) -> tuple[float, float]:
    """Median microseconds a product of the packed kernel and of the small-M one, measured in turn."""
    cuda = device == "cuda"
    dtype = torch.float16 if cuda else torch.float32
    x = torch.randn(rows, weights[0].k, dtype=dtype, device=device)
    out = torch.empty(rows, weights[0].n, dtype=dtype, device=device)
    kernels: tuple[Callable[..., object], ...] = (functional.linear, functional.linear_few_rows)
    runs = [[partial(kernel, x, weight, out=out) for weight in weights] for kernel in kernels]
    time_all = _graph_replays if cuda else _calls
    turns = [time_all(calls) for calls in runs]
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for turn, kept in zip(turns, taken, strict=True):
            kept.append(1e6 * turn() / len(weights))
    return statistics.median(taken[0]), statistics.median(taken[1])


def _calls(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    def run() -> float:
        begin = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - begin

    run()
    return run


def _graph_replays(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def run() -> float:
        begin = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return run


def main(argv: list[str] | None = None) -> None:
    """Print a line a projection, device and number of rows."""
    parser = argparse.ArgumentParser(prog="python -m suites.tp_admission.bench_small_m", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="one of the two; default: what is there")
    wanted = parser.parse_args(argv).device
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    set_threads(1)
    torch.set_num_threads(1)
    for device in there if wanted is None else [wanted]:
        if device == "cuda":
            load_kernels(torch.device("cuda", 0))
        for admitted in promoted():
            size = int(admitted.physical_n * admitted.k * BYTES_A_WEIGHT)
            first = Nvfp4Weights.random(np.random.default_rng(0), admitted.physical_n, admitted.k).matrix()
            count = max(2, CACHE_BYTES[device] // size)
            weights = [_on(device, first.pack()) for _ in range(count)]
            for rows in ROWS:
                packed, small = microseconds(device, weights, rows)
                shape = f"[{admitted.physical_n}, {admitted.k}]"
                print(
                    f"{device:4}  {admitted.projection:13}  {shape:13}  {rows} rows  packed {packed:8.1f} us  "
                    f"small-M {small:8.1f} us  ratio {small / packed:.2f}",
                    flush=True,
                )


def _on(device: str, weight: PackedNvfp4) -> PackedNvfp4:
    codes, scales = weight.codes.to(device, copy=True), weight.scales.to(device, copy=True)
    return PackedNvfp4(codes, scales, weight.n, weight.k, weight.global_scale)


if __name__ == "__main__":
    main()
