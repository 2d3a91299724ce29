"""Prints the published tables, taken again of quasar-tiny: ``python -m suites.tables [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.tables.carried import Settings
    from suites.tables.table import Table

NAMES = {
    "loss": "held-out loss by how weights, keys and values are stored",
    "kv": "largest errors of keys and values through FP8",
    "head": "nucleus of FP16 and FP32 logits beside fp64",
    "shards": "TP 2 shards with scales aligned to 16, and as stored",
    "lookups": "what lookup finds, and what is accepted of it",
    "frequencies": "the conditional lookup's frequencies over seeds",
    "ledger": "required candidates and decisions made again",
    "pipeline": "boundaries with the context pipeline on and off",
    "rounds": "medians of E4M3 / FP32 rounds, optimised and control",
}
_EPILOG = """\
examples:
  python -m suites.tables                        every one, minutes on two cores
  python -m suites.tables ledger pipeline        two of them
  python -m suites.tables --prompts 2 --max-tokens 24 lookups       a rehearsal

Exit code 1: something that must be equal is not; it is named.
"""


def tables() -> dict[str, Callable[[Settings], Table]]:
    """Who makes which table."""
    from suites.tables import boundaries, conditional, drafting, precision, rounds, shards, verifier

    return {
        "loss": precision.loss,
        "kv": precision.kv,
        "head": precision.head,
        "shards": shards.shards,
        "lookups": drafting.lookups,
        "frequencies": conditional.frequencies,
        "ledger": verifier.ledger,
        "pipeline": boundaries.pipeline,
        "rounds": rounds.rounds,
    }


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; choose from {', '.join(NAMES)}")
    import torch

    from suites.tables.carried import Settings

    if options.threads:
        torch.set_num_threads(options.threads)
    settings = Settings(
        threads=options.threads,
        max_tokens=options.max_tokens,
        prompts=options.prompts,
        seeds=options.seeds,
        repeats=options.repeats,
    )
    makers = tables()
    for name in options.names or NAMES:
        began = time.monotonic()
        try:
            table = makers[name](settings)
        except (AssertionError, RuntimeError) as difference:
            print(f"{name}: {difference}", file=sys.stderr)
            return 1
        print("\n".join(table.markdown()), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<13}{what}" for name, what in NAMES.items())
    parser = argparse.ArgumentParser(
        prog="python -m suites.tables",
        description=f"The published tables, taken again of quasar-tiny.\n\ntables:\n{listed}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which tables; default: all")
    parser.add_argument("--threads", type=int, metavar="N", help="threads; default: every core allowed")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="limit of a reply (default 128)")
    parser.add_argument("--prompts", type=int, default=16, metavar="N", help="held-out prompts (default 16)")
    parser.add_argument("--seeds", type=int, default=100_000, metavar="N", help="of the frequencies (default 100000)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="processes behind the warm-up (default 3)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
