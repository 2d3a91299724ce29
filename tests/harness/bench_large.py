"""How long and how large a comparison of two bundles of many cases is: ``python -m tests.harness.bench_large [CASES]``.

Makes two runs of made-up cases, seals both, and times ``harness compare`` in a process of its own. The bound to keep is
10 s and 1 GiB for 100,000 cases; on a busy machine look at the processor's time, which is what others cannot lengthen
by waiting.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.junit import pytest_address

REPOSITORY = Path(__file__).resolve().parents[2]
FACTS = {"device_key": "cpu-x86-64", "cpu.model": "x", "git.commit": "a" * 40, "native.sha256": "b" * 64}


def line(kind: str, **fields: object) -> str:
    return json.dumps({"schema": 1, "kind": kind, **fields}) + "\n"


def make_run(run: Path, cases: int) -> None:
    """A run folder of one scope, every second case with an exact metric."""
    folder = run / "kernels"
    folder.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"schema": 1, "id": run.name, "created": "2026-01-01T00:00:00Z"}))
    nodes = [f"suites/kernels/test_m{i // 1000}.py::test_case[{i}-abc]" for i in range(cases)]
    with (folder / "records.jsonl").open("w") as stream:
        stream.write(line("collected", nodes=nodes))
        for i, node in enumerate(nodes):
            stream.write(line("case_start", node=node, group=""))
            if i % 2 == 0:
                stream.write(
                    line("metric", node=node, name="ulp", value=i % 7, unit="1", better="lower", assume="exact")
                )
            end = {"node": node, "outcome": "passed", "phases": {}, "seconds": 0.001, "reason": "", "reruns": 0}
            stream.write(line("case_end", **end))
    rows = "".join('<testcase classname="{}" name="{}" time="0.001"/>'.format(*pytest_address(node)) for node in nodes)
    (folder / "junit.xml").write_text(f'<testsuites><testsuite name="pytest">{rows}</testsuite></testsuites>')
    (folder / "environment.json").write_text(json.dumps(FACTS))
    scope = {"schema": 1, "scope": "kernels", "state": "finished", "origin": {"kind": "fresh", "detail": ""}}
    scope |= {"argv": ["pytest"], "exit_code": 0, "seconds": 1.0, "problem": ""}
    (folder / "scope.json").write_text(json.dumps(scope))


@dataclass(frozen=True)
class Took:
    """Seconds of a command: on the clock, and of the processor."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} s ({self.processor:.1f} s of the processor)"


def harness(root: Path, *arguments: str) -> Took:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(
        [sys.executable, "-m", "harness", *arguments], cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(time.perf_counter() - start, processor)


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("a", "b"):
            make_run(root / name, cases)
            print(f"seal {name}: {harness(root, 'seal', name, '--against', 'none', '--out', 'out')}")
        base, head = sorted(str(path) for path in (root / "out").iterdir())
        took = harness(root, "compare", base, head)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"compare {cases} cases: {took}, largest child {peak:.0f} MiB")


if __name__ == "__main__":
    main()
