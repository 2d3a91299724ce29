"""Whole logits beside candidates over real ranks: `python -m suites.tp_admission.bench_head --tp 2 --device cuda`.

Both begin with the same product of a rank's share of the head. Then either the ranks exchange all their logits, or each
picks its best and they exchange and merge those. The ratio is the median of candidates over that of whole logits, taken
in turn on rank 0; bytes are what a rank receives. On CUDA both are replayed from graphs, as in a round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine.model.graphs import collector_held_off
from engine.ops.bound import Step, set_threads
from engine.ops.placement import load_kernels
from engine.parallel.group import Group
from engine.parallel.head import ParallelHead
from engine.parallel.launch import Device, run_ranks
from engine.parallel.plan import VocabSplit

HEADS = {"smollm2": (49152, 576), "27b": (248320, 5120)}
ROWS = (1, 8)
COUNTS = (1, 20)
ROUNDS = 25
BYTES_A_LOGIT, BYTES_A_CANDIDATE = 4, 4 + 8


@dataclass(frozen=True, slots=True)
class Line:
    """Medians in microseconds of both forms of one head."""

    rows: int
    count: int
    whole: float
    candidates: float


def lines(group: Group, vocab_size: int, hidden_size: int, device: Device) -> list[Line]:
    """Every number of rows and candidates, on this rank."""
    set_threads(1)
    torch.set_num_threads(1)
    vocab = VocabSplit(vocab_size, group.size)
    place = torch.device("cpu") if device == "cpu" else torch.device("cuda", group.rank)
    if device == "cuda":
        load_kernels(place)
    generator = torch.Generator(place).manual_seed(group.rank)
    share = torch.randn(vocab.local, hidden_size, generator=generator, device=place).half()
    head = ParallelHead(group, vocab, share, fp32_logits=True)
    found = []
    for rows in ROWS:
        x = torch.randn(rows, hidden_size, generator=torch.Generator().manual_seed(rows))
        x = x.to(place, torch.float32 if device == "cpu" else torch.float16)
        out = torch.empty(rows, vocab_size, device=place)
        steps = head.bind(x, out)
        for count in COUNTS:
            forms = (partial(_all, steps), partial(head.candidates, x, count))
            runs = [_timed(form, device) for form in forms]
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(ROUNDS):
                for run, kept in zip(runs, taken, strict=True):
                    kept.append(1e6 * run())
            found.append(Line(rows, count, *(statistics.median(kept) for kept in taken)))
    return found


def _all(steps: Sequence[Step]) -> None:
    for step in steps:
        step()


def _timed(work: Callable[[], object], device: Device) -> Callable[[], float]:
    work()
    replay: Callable[[], object] = work
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with collector_held_off(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

    def run() -> float:
        begin = time.perf_counter()
        replay()
        return time.perf_counter() - begin

    return run


def main(argv: list[str] | None = None) -> None:
    """Print one line per head, number of rows and number of candidates."""
    parser = argparse.ArgumentParser(prog="python -m suites.tp_admission.bench_head", description=__doc__)
    parser.add_argument("--tp", type=int, choices=(2, 4), default=2, help="ranks, on CUDA a GPU each (default: 2)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the ranks are (default: cpu)")
    parser.add_argument("--head", choices=HEADS, default="smollm2", help="whose vocabulary and width")
    options = parser.parse_args(argv)
    vocab_size, hidden_size = HEADS[options.head]
    first, *_ = run_ranks(options.tp, lines, (vocab_size, hidden_size, options.device), device=options.device)
    for line in first:
        whole = line.rows * vocab_size * BYTES_A_LOGIT * (options.tp - 1) // options.tp
        picked = line.rows * (line.count + 1) * BYTES_A_CANDIDATE * (options.tp - 1)
        print(
            f"{options.device:4}  tp {options.tp}  {options.head:8} {line.rows:2} rows  "
            f"whole {line.whole:9.1f} us {whole:>11,} B  best {line.count:2} {line.candidates:9.1f} us {picked:>7,} B  "
            f"ratio {line.candidates / line.whole:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
