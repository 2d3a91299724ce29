"""Every sampling kernel on every path it has, on rows small enough for a checker that slows a kernel a hundredfold.

    compute-sanitizer --tool racecheck --kernel-name kernel_substring=sampling python -m suites.sampling.exercise

Answers are compared with the CPU ops to the bit; the first that differs ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from native import loader
from native.bindings import sampling as cpu
from native.cuda_bindings import sampling as device
from suites.sampling import rows
from suites.sampling.cutting import Settings, on_device
from suites.targets import CPU, CUDA, array

WIDTH = 5003
# One row a path: a small k, the same with ties split, a large k with and without top-p, top-p alone, off, greedy, hot.
SETTINGS = Settings(
    (20, 20, 4000, 4000, 0, 0, 20, 20),
    (0.95, 0.3, 0.7, 1.0, 0.9, 1.0, 0.9, 0.9),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.7),
)


def differing(kind: str) -> list[str]:
    """Names of the ops whose answers on rows of ``kind`` are not the CPU's."""
    logits = rows.logits(kind, len(SETTINGS.top_k), WIDTH)
    bits = rows.generator(WIDTH).integers(-(2**63), 2**63 - 1, size=len(logits))
    on, mine = on_device(CPU, logits), on_device(CUDA, logits)
    (k, p, t), (k_there, p_there, t_there) = SETTINGS.put(CPU), SETTINGS.put(CUDA)
    plan = cpu.bind_sampling_plan(on, k, p, t)()
    drawn = cpu.bind_sampling_draw(on, plan, torch.from_numpy(bits), t)()
    expected = {
        "plan": plan,
        "draw": drawn,
        "weigh": cpu.bind_sampling_weigh(on, plan, drawn, t)(),
        "masses": cpu.bind_sampling_masses(on, plan, t)(),
        "apply": cpu.bind_sampling_apply(on.clone(), plan, t)(),
    }
    cut = mine.clone()
    there, ids = device.sampling_sample(mine, CUDA.put(bits), k_there, p_there, t_there)
    device.sampling_cut(cut, k_there, p_there, t_there)
    seen = {
        "plan": (there,),
        "draw": (ids,),
        "weigh": (device.sampling_weigh(mine, there, ids, t_there),),
        "masses": (device.sampling_masses(mine, there, t_there),),
        "apply": (device.sampling_apply(mine.clone(), there, t_there), cut),
    }
    return [
        name
        for name, answers in seen.items()
        if any(array(answer).tobytes() != np.ascontiguousarray(array(expected[name])).tobytes() for answer in answers)
    ]


def main(argv: list[str] | None = None) -> int:
    """Run each kind of row; 0 where the answers are the CPU's."""
    parser = argparse.ArgumentParser(prog="python -m suites.sampling.exercise", description=__doc__)
    parser.add_argument("--kind", action="append", choices=rows.KINDS, help="rows; may be given more than once (all)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device: run it on a GPU machine", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, library {loader.library_sha256()[:12]}, V {WIDTH}")
    for kind in args.kind or rows.KINDS:
        wrong = differing(kind)
        print(f"{kind}: {'as on the CPU' if not wrong else 'DIFFERS in ' + ', '.join(wrong)}", flush=True)
        if wrong:
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
