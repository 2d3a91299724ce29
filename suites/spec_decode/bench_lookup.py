"""What lookup is worth on editing prompts: the same replies with and without it, interleaved in one process.

    python -m suites.spec_decode.bench_lookup

Two engines with the same model take turns (ABBA), so that a neighbour's noise meets both; every reply must have the
same tokens. Printed are medians of decoded tokens a second, their spread (half the interquartile range over the
median), the ratio, tokens emitted per round, and the share of a round that is not the target's own work (draft, reject
and commit). Exit code 1: a ratio below ``--least`` or a share above ``--most-overhead``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.config import EngineConfig, read_environment
from engine.llm import LLM
from engine.request import SamplingParams
from engine.result import GenerationResult
from suites.latency.bench_llama_cpp import interleave, spread

TEXT = (
    "The harbour was quiet in the early morning. Two fishing boats lay at the end of the long wooden pier, and the "
    "gulls stood in a row along the railing. An old man carried a basket of ropes down the steps and put it beside the "
    "blue boat. He looked at the sky, nodded to himself, and began to untie the first knot. The water moved slowly "
    "against the stones of the harbour wall."
)
CODE = """\
def read_table(path, separator):
    rows = []
    with open(path) as file:
        for line in file:
            cells = line.strip().split(separator)
            rows.append([cell.strip() for cell in cells])
    return rows

def write_table(path, rows, separator):
    with open(path, "w") as file:
        for cells in rows:
            file.write(separator.join(cells) + "\\n")
"""
PROMPTS = {
    "spelling": f"Correct the spelling mistakes in this text and change nothing else:\n{TEXT}",
    "title": f'Write this text again with the title "Morning" above it:\n{TEXT}',
    "rename": f"Rename the variable rows to table in this code and show all of the code:\n```python\n{CODE}```",
}
MAX_TOKENS = 160
CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt. Tokens a second of each turn, and a reply of the engine that looks up."""

    prompt: str
    lookup: list[float]
    plain: list[float]
    reply: GenerationResult

    @property
    def ratio(self) -> float:
        """How many times as many tokens a second with lookup."""
        return statistics.median(self.lookup) / statistics.median(self.plain)

    @property
    def overhead(self) -> float:
        """Share of a round that is not the target's own work."""
        return self.reply.overhead_share or 0.0


def speed(llm: LLM, token_ids: Sequence[int], replies: list[GenerationResult]) -> float:
    """Decoded tokens a second of one reply, which is added to ``replies``."""
    replies.append(llm.generate(token_ids, SamplingParams(max_tokens=MAX_TOKENS)))
    tokens_a_second = replies[-1].decode_tokens_per_second
    if tokens_a_second is None:
        raise RuntimeError("the reply has one token; ask for something longer")
    return tokens_a_second


def measure(model: Path | None, threads: int, drafts: int, turns: int, prompts: Sequence[str]) -> list[Row]:
    """Both engines over each prompt. Raises ``RuntimeError`` where their tokens differ: no speed of a wrong answer."""
    lookup, plain = (
        LLM(EngineConfig(model=model, draft=draft, draft_tokens=drafts, threads=threads, max_model_len=CONTEXT))
        for draft in ("lookup", "none")
    )
    rows = []
    for name in prompts:
        token_ids = plain.chat_prompt(PROMPTS[name])
        looked_up: list[GenerationResult] = []
        decoded: list[GenerationResult] = []
        speeds = interleave(
            partial(speed, lookup, token_ids, looked_up), partial(speed, plain, token_ids, decoded), turns
        )
        if len({result.tokens_sha256 for result in (*looked_up, *decoded)}) != 1:
            raise RuntimeError(f"{name!r}: the replies with and without lookup differ; nothing can be compared")
        rows.append(Row(name, *speeds, looked_up[-1]))
        print(f"{name}: {rows[-1].ratio:.2f}x", file=sys.stderr, flush=True)
    return rows


def show(rows: Sequence[Row]) -> str:
    """The table."""
    lines = [f"{'prompt':<10} tokens rounds emitted/round   lookup  spread    plain  spread  n  ratio  overhead"]
    lines += [
        f"{row.prompt:<10} {len(row.reply.token_ids):>6} {row.reply.rounds:>6} {row.reply.emitted_per_round:>13.2f} "
        f"{statistics.median(row.lookup):>8.1f} {spread(row.lookup):>6.1%} {statistics.median(row.plain):>8.1f} "
        f"{spread(row.plain):>6.1%} {len(row.plain):>2} {row.ratio:>5.2f}x {row.overhead:>8.1%}"
        for row in rows
    ]
    return "\n".join([*lines, "speeds are decoded tokens a second; the same greedy tokens on both sides, natural stop"])


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.spec_decode.bench_lookup", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file (default: SM70_MODEL, or the packaged SmolLM2)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--draft-tokens", type=int, default=7, help="K (default 7)")
    parser.add_argument("--turns", type=int, default=4, help="measurements of each side and prompt")
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--least", type=float, default=2.0, help="smallest ratio that is well (default 2.0)")
    parser.add_argument("--most-overhead", type=float, default=0.15, help="largest share that is well (default 0.15)")
    options = parser.parse_args(argv)
    model = options.model or read_environment(os.environ).model
    rows = measure(model, options.threads, options.draft_tokens, options.turns, options.prompts)
    print(show(rows))
    well = all(row.ratio >= options.least and row.overhead <= options.most_overhead for row in rows)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
