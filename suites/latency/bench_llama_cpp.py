"""Our CPU path beside llama.cpp: same file, same prompt tokens, same threads, interleaved in one run.

    python -m suites.latency.bench_llama_cpp --peer-python PATH

Two processes with the model loaded take turns (ABBA), so that a neighbour's noise meets both. Printed are medians, the
number of turns, the spread (half the interquartile range over the median) and the ratio ours / theirs of the medians.
This is a benchmark: it asserts nothing and is no test.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from engine.config import read_environment
from engine.model.weights_gguf import default_model_path

ROOT = Path(__file__).resolve().parents[2]
MESSAGE = "Why is the sky blue?"
DECODE_TOKENS = 96
PREFILL_TOKENS = 512
VERIFY_CONTEXT = 256
VERIFY_ROWS = 8
VERIFY_PASSES = 12
QUANTITIES = ("decode", "prefill", "verify")


class Side:
    """A worker process that answers one JSON line with another."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[str] = self._process.stdin
        self._from: IO[str] = self._process.stdout

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """One request, its answer. RuntimeError when the worker ended instead."""
        try:
            self._to.write(json.dumps({"call": name, **arguments}) + "\n")
            self._to.flush()
            line = self._from.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"worker ended with {self._process.wait()}: {self._process.args!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker, alive or not."""
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        self._process.wait(timeout=30)


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of both sides. ``ratio`` > 1: ours is better."""

    what: str
    threads: int
    unit: str
    ours: list[float]
    theirs: list[float]
    higher_is_better: bool

    @property
    def ratio(self) -> float:
        """How many times better our median is."""
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return ours / theirs if self.higher_is_better else theirs / ours


def spread(values: list[float]) -> float:
    """Half the interquartile range over the median; 0 for fewer than 3 values."""
    if len(values) < 3:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / statistics.median(values)


def interleave(ours: Callable[[], float], theirs: Callable[[], float], turns: int) -> tuple[list[float], list[float]]:
    """``turns`` values of each side in the order ABBA ABBA ..., after one unrecorded call of both."""
    ours(), theirs()
    values: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(turns):
        for is_ours in (True, False) if turn % 2 == 0 else (False, True):
            values[is_ours].append(ours() if is_ours else theirs())
    return values[True], values[False]


def measure(
    ours: Side, theirs: Side, threads: int, turns: int, what: Sequence[str] = QUANTITIES
) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """The quantities ``what`` with ``threads`` threads; and what both sides say of themselves."""
    prompt: list[int] = ours.call("chat", message=MESSAGE)["prompt"]
    long_prompt = (prompt * (PREFILL_TOKENS // len(prompt) + 1))[:PREFILL_TOKENS]
    context = long_prompt[:VERIFY_CONTEXT]

    def decode(side: Side) -> float:
        return (DECODE_TOKENS - 1) / float(side.call("decode", prompt=prompt, count=DECODE_TOKENS)["seconds"])

    def prefill(side: Side) -> float:
        return PREFILL_TOKENS / float(side.call("prefill", prompt=long_prompt)["seconds"])

    def verify(side: Side, rows: int) -> float:
        seconds: list[float] = side.call("verify", prompt=context, rows=rows, passes=VERIFY_PASSES)["seconds"]
        return 1000 * statistics.median(seconds)

    def row(name: str, unit: str, call: Callable[[Side], float], *, higher_is_better: bool) -> Row:
        pair = interleave(lambda: call(ours), lambda: call(theirs), turns)
        measured = Row(name, threads, unit, *pair, higher_is_better)
        # A busy machine may stop the run: what is measured is seen at once.
        print(f"{threads} threads, {name}: {measured.ratio:.2f}x", file=sys.stderr, flush=True)
        return measured

    rows = []
    if "decode" in what:
        rows.append(row("greedy decode", "token/s", decode, higher_is_better=True))
    if "prefill" in what:
        rows.append(row("prefill 512", "token/s", prefill, higher_is_better=True))
    about = {"ours": ours.call("about"), "theirs": theirs.call("about")}
    if "verify" in what:
        rows.append(row("verify 1 rows", "ms", lambda side: verify(side, 1), higher_is_better=False))
        name = f"verify {VERIFY_ROWS} rows"
        rows.append(row(name, "ms", lambda side: verify(side, VERIFY_ROWS), higher_is_better=False))
    return rows, about


def show(rows: list[Row], about: dict[str, dict[str, Any]]) -> str:
    """The table."""
    lines = [f"{'':<16} threads     unit      ours  spread    theirs  spread   n  ratio"]
    for row in rows:
        ours, theirs = statistics.median(row.ours), statistics.median(row.theirs)
        lines.append(
            f"{row.what:<16} {row.threads:>7} {row.unit:>8} {ours:>9.2f} {spread(row.ours):>6.1%} "
            f"{theirs:>9.2f} {spread(row.theirs):>6.1%} {len(row.ours):>3} {row.ratio:>5.2f}x"
        )
    for threads in sorted({row.threads for row in rows if row.what.startswith("verify")}):
        one, eight = (
            next(row for row in rows if row.threads == threads and row.what == f"verify {count} rows")
            for count in (1, VERIFY_ROWS)
        )
        ours, theirs = (
            (statistics.median(eight.ours) / statistics.median(one.ours)),
            (statistics.median(eight.theirs) / statistics.median(one.theirs)),
        )
        lines.append(f"8 rows cost, in rows of one, {threads} threads: ours {ours:.2f}, theirs {theirs:.2f}")
    for side, facts in about.items():
        lines.append(f"{side}: {facts['version']}, {facts['resident_mib']:.0f} MiB resident, {facts['build']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.latency.bench_llama_cpp", description=__doc__)
    parser.add_argument("--peer-python", required=True, help="interpreter that can import llama_cpp")
    parser.add_argument("--model", type=Path, help="GGUF file (default: SM70_MODEL, or the packaged SmolLM2)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=6, help="measurements of each side and quantity")
    parser.add_argument("--what", nargs="+", choices=QUANTITIES, default=list(QUANTITIES), help="quantities to measure")
    parser.add_argument("--json", type=Path, help="write every value here as well")
    options = parser.parse_args(argv)
    model = str(options.model or read_environment(os.environ).model or default_model_path())

    rows: list[Row] = []
    about: dict[str, dict[str, Any]] = {}
    for threads in options.threads:
        arguments = ["--model", model, "--threads", str(threads)]
        ours = Side([sys.executable, "-m", "suites.latency.bench_worker", *arguments])
        theirs = Side([options.peer_python, str(Path(__file__).with_name("peer_worker.py")), *arguments])
        try:
            measured, about = measure(ours, theirs, threads, options.turns, options.what)
            rows += measured
        finally:
            ours.close()
            theirs.close()
    print(show(rows, about))
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "about": about}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
