"""Sampling latency: cutting a batch of logits, beside a copy of them and beside the samplers a user would pick.

    python -m suites.sampling.bench_cutoffs [--device cuda] [--json out.json]

Per kind of row and batch size, in one process and interleaved: our cut (plan and apply, in place) and our sample (plan
and draw), each bound to its tensors once and run, and the cut as a function that checks and allocates at every call;
one copy of the logits on the same device, torch's sort-based masking, and FlashInfer where it is installed.
Every arm's answer is checked before a time is taken. Medians in microseconds, ratios with 95 % intervals.
This is a benchmark: times assert nothing and this is no test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.ops import sampling as ops
from native import loader
from native import ops as native_ops
from suites.sampling import flashinfer_arms, rows
from suites.sampling.cutting import Cut, Settings, assert_within_band, on_device
from suites.sampling.timing import DeviceTimer, HostTimer, Ratio, Work, interleave, ratio
from suites.targets import CPU, CUDA, Target, array

# V100: 900 GB/s on paper, of which a copy reaches about 0.87; two microseconds a launch.
V100_BYTES_PER_US = 900e9 * 0.87 / 1e6
V100_LAUNCH_US = 2.0
LAUNCHES = 3
RATIOS = (
    ("cut", "copy"),
    ("sort", "cut"),
    (flashinfer_arms.MASK, "cut"),
    (flashinfer_arms.DRAW, "sample"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One group of the benchmark: what the rows look like and how they are cut."""

    name: str
    rows: str
    top_k: int
    top_p: float


KINDS = (
    Kind("both", "ordinary", 20, 0.95),
    Kind("tied, both", "half", 20, 0.95),
    Kind("all equal, both", "equal", 20, 0.95),
    Kind("top-k only", "ordinary", 20, 1.0),
    Kind("top-p only", "ordinary", 0, 0.95),
    Kind("tied, top-p only", "half", 0, 0.95),
    Kind("disabled", "ordinary", 0, 1.0),
    Kind("k 5000, both", "ordinary", 5000, 0.95),
    Kind("flat, top-p only", "flat", 0, 0.95),
)


def sort_based(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The usual masking with a full sort: threshold top-k, then top-p with ties in the order that the sort leaves."""
    ordered, ids = logits.sort(dim=-1)
    threshold = ordered.gather(1, (ordered.shape[1] - top_k.to(torch.int64)).unsqueeze(1))
    ordered.masked_fill_(ordered < threshold, -torch.inf)
    removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p.unsqueeze(1)
    removed[:, -1] = False
    ordered.masked_fill_(removed, -torch.inf)
    return logits.scatter_(1, ids, ordered)


def _once_bound(bind: Callable[[torch.Tensor], Callable[[], torch.Tensor]]) -> Work:
    """An arm that binds a buffer when it first sees it and from then on runs what it bound."""
    bound: dict[int, Callable[[], torch.Tensor]] = {}

    def run(logits: torch.Tensor) -> torch.Tensor:
        call = bound.get(logits.data_ptr())
        if call is None:
            call = bound[logits.data_ptr()] = bind(logits)
        return call()

    return run


def _arms(target: Target, kind: Kind, batch: int, width: int) -> dict[str, Work]:
    top_k, top_p, _ = Settings.same(batch, kind.top_k, kind.top_p).put(target)
    full_k = torch.where(top_k == 0, width, top_k)
    bits = target.put(rows.generator(batch).integers(-(2**63), 2**63 - 1, size=batch), torch.int64)
    elsewhere = torch.empty((batch, width), dtype=torch.float32, device=target.name)

    arms: dict[str, Work] = {
        "copy": elsewhere.copy_,
        "cut": _once_bound(lambda logits: ops.bind_sampling_cut(logits, top_k, top_p)),
        "unbound cut": lambda logits: ops.sampling_cut(logits, top_k, top_p),
        "sample": _once_bound(lambda logits: ops.bind_sampling_sample(logits, bits, top_k, top_p)),
        "sort": lambda logits: sort_based(logits, full_k, top_p),
    }
    if target.name == "cuda" and flashinfer_arms.installed():
        arms |= flashinfer_arms.arms(kind.top_k, kind.top_p)
    return arms


def _check_answers(arms: Mapping[str, Work], target: Target, kind: Kind, logits: rows.F32) -> None:
    """The cut keeps what the oracle keeps in the first row; the other samplers keep as many ids, give or take an edge
    entry, and FlashInfer is only asked where the rows have no ties."""
    settings = Settings.same(logits.shape[0], kind.top_k, kind.top_p)
    on = on_device(target, logits)
    plan = array(arms["cut"](on))  # type: ignore[arg-type]
    after = array(on)
    result = Cut(plan, after, np.isfinite(after))
    assert_within_band(result, 0, logits, settings, f"{target.name} {kind.name}")
    other = on_device(target, logits)
    arms["sort"](other)
    counted, expected = int(np.isfinite(array(other)[0]).sum()), len(result.ids(0))
    slack = max(2, expected // 1000)
    if abs(counted - expected) > slack:
        raise AssertionError(f"{kind.name}: the sort keeps {counted} ids, the cut {expected}")
    if flashinfer_arms.DRAW in arms and kind.rows in ("ordinary", "flat"):
        flashinfer_arms.check(kind.top_k, kind.top_p, on_device(target, logits), expected, slack)


@dataclass(frozen=True, slots=True)
class Line:
    """What one group measured; samples in microseconds by mode and arm."""

    kind: str
    batch: int
    width: int
    samples: dict[str, dict[str, list[float]]]

    def median(self, mode: str, arm: str) -> float | None:
        values = self.samples[mode].get(arm)
        return statistics.median(values) if values else None

    def ratio(self, mode: str, numerator: str, denominator: str) -> Ratio | None:
        arms = self.samples[mode]
        return ratio(arms[numerator], arms[denominator]) if {numerator, denominator} <= arms.keys() else None


def measure(
    target: Target, kind: Kind, batch: int, width: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Line:
    """All arms of one group, checked, then timed in turns; ``clock`` as in `HostTimer`."""
    logits = rows.logits(kind.rows, batch, width)
    arms = _arms(target, kind, batch, width)
    # Checked on arms of their own: what is bound is bound to buffers that live as long as it.
    _check_answers(_arms(target, kind, batch, width), target, kind, logits)
    source = on_device(target, logits)
    timer: HostTimer | DeviceTimer
    if target.name == "cuda":
        captured = [arm for arm in arms if arm not in ("unbound cut", "sort")]
        timer = DeviceTimer(source, arms, captured, buffers=8 if batch > 8 else 16)
    else:
        timer = HostTimer(source, arms, clock)
    return Line(kind.name, batch, width, interleave(timer, tuple(arms), rounds))


def v100_floor_us(batch: int, width: int) -> float:
    """Prediction: the logits read once and written once at a copy's speed, and the launches."""
    return 2 * batch * width * 4 / V100_BYTES_PER_US + LAUNCHES * V100_LAUNCH_US


def _print(line: Line, mode: str) -> None:
    medians = "  ".join(
        f"{arm} {value:9.1f}" for arm in line.samples[mode] if (value := line.median(mode, arm)) is not None
    )
    ratios = []
    for top, bottom in RATIOS:
        found = line.ratio(mode, top, bottom)
        if found is not None:
            ratios.append(f"{top}/{bottom} {found}")
    print(f"{line.kind:>18} B {line.batch:3} {mode:>5}: {medians} us | {'; '.join(ratios)}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write every sample where asked."""
    parser = argparse.ArgumentParser(prog="python -m suites.sampling.bench_cutoffs", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=151936, help="vocabulary (default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, action="append", help="rows; may be given more than once (default: 1, 8, 64)"
    )
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS], help="groups (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of torch and of our ops on the CPU (default: 1)")
    parser.add_argument(
        "--thread-time",
        action="store_true",
        help="on the CPU: processor time of the thread, for a machine that is shared with other work",
    )
    parser.add_argument("--rounds", type=int, default=0, help="times each arm is measured (default: 30 on a GPU, 5)")
    parser.add_argument("--json", type=Path, help="write all samples here")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: run it on a GPU machine, or with --device cpu", file=sys.stderr)
        return 2
    if args.thread_time and (args.device != "cpu" or args.threads != 1):
        print("--thread-time sees one thread of a CPU: leave out --device cuda and --threads", file=sys.stderr)
        return 2
    clock = time.thread_time if args.thread_time else time.perf_counter
    torch.set_num_threads(args.threads)
    native_ops.set_threads(args.threads)
    target = CUDA if args.device == "cuda" else CPU
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    name += ", processor time" if args.thread_time else ""
    print(f"{name}, torch {torch.__version__}, V {args.width}, library {loader.library_sha256()[:12]}")
    batches = args.batch or [1, 8, 64]
    lines = []
    for batch in batches:
        floor = v100_floor_us(batch, args.width)
        print(f"B {batch}: V100 floor {floor:.0f} us (a prediction: {LAUNCHES} launches, one read and one write)")
        for kind in KINDS:
            if args.kind and kind.name not in args.kind:
                continue
            rounds = args.rounds or (30 if args.device == "cuda" else 5)
            line = measure(target, kind, batch, args.width, rounds, clock)
            lines.append(line)
            for mode in line.samples:
                _print(line, mode)
    if args.json is not None:
        record: dict[str, Any] = {
            "device": name,
            "torch": torch.__version__,
            "library_sha256": loader.library_sha256(),
            "unit": "us",
            "lines": [
                {"kind": line.kind, "batch": line.batch, "width": line.width, "samples": line.samples} for line in lines
            ],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
