"""``python -m engine replay …`` and ``python -m engine drift …``: is the state right, and is a restart the same?

Exit codes: 0 all equal, 1 a difference (it is named), 2 input that cannot be used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.config import EngineConfig

EXIT_EQUAL = 0
EXIT_DIFFERENT = 1


def replay_command(arguments: Sequence[str]) -> int:
    """Commit some of K drafts, round after round, and compare with the same tokens run from scratch."""
    parser = _parser("replay", replay_command.__doc__ or "")
    parser.add_argument("--rounds", type=int, default=16, metavar="N", help="rounds with random drafts (default 16)")
    parser.add_argument("--draft-tokens", type=int, default=7, metavar="K", help="drafts per round (default 7)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the drafts and the accepted counts")
    options = parser.parse_args(arguments)
    _at_least_one("rounds", options.rounds)
    _at_least_one("draft-tokens", options.draft_tokens)
    from engine.config import EngineConfig  # torch and the model code: not for --help
    from engine.diagnostics.replay import random_rounds, replay
    from engine.loading import load_model

    tokens_needed = 4096 + 2 * (options.rounds + 1) * (options.draft_tokens + 1)
    model = load_model(_config(EngineConfig, options, kv_cache_tokens=tokens_needed))
    prompt = model.tokenizer.encode(options.prompt)
    rounds = random_rounds(options.seed, model.runner.vocab_size, options.rounds, options.draft_tokens)
    report = replay(model, prompt, prompt[0], rounds)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print(f"{report.rounds} rounds of {options.draft_tokens} drafts, accepted {list(report.accepted)}")
        print(
            f"commit and continue equals replay from scratch: {report.tensors} tensors, bit for bit"
            if report.equal
            else f"round {report.failed_round} differs; {report.difference}"
        )
    return EXIT_EQUAL if report.equal else EXIT_DIFFERENT


def drift_command(arguments: Sequence[str]) -> int:
    """Two fresh processes over the same tokens; the second may have one setting changed."""
    parser = _parser("drift", drift_command.__doc__ or "")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="greedy tokens after the prompt")
    parser.add_argument("--switch", default="", metavar="NAME=VALUE", help="e.g. kv-cache-dtype=float16; default: none")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="of the laws (default 1.0)")
    parser.add_argument("--top-k", type=int, default=20, metavar="K", help="of the laws (default 20; 0: off)")
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help="of the laws (default 0.95)")
    options = parser.parse_args(arguments)
    _at_least_one("tokens", options.tokens)
    from engine.diagnostics.drift import drift
    from engine.diagnostics.forced import ForcedRun
    from engine.request import SamplingParams

    SamplingParams(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)  # refuses nonsense
    settings = {"kv_cache_dtype": options.kv_cache_dtype, "threads": options.threads}
    run = ForcedRun(
        prompt=options.prompt,
        tokens=(),
        continue_by=options.tokens,
        model=None if options.model is None else str(options.model),
        settings=settings,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
    )
    report = drift(run, options.switch)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        worst = max(range(len(report.tv)), key=report.tv.__getitem__)
        what = f"with {report.switch}" if report.switch else "same settings"
        print(f"{len(report.tokens)} forced tokens, two processes, {what}")
        print(f"largest total variation {report.tv[worst]:.3g}, after token {worst}; mean {_mean(report.tv):.3g}")
        print(f"other tokens can be drawn at {len(report.supports_differ)} positions: {list(report.supports_differ)}")
        print("every tensor equal" if report.difference is None else f"first difference: {report.difference}")
    return EXIT_EQUAL if report.equal else EXIT_DIFFERENT


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"replay": replay_command, "drift": drift_command}


def _at_least_one(name: str, value: int) -> None:
    """A run over nothing would find everything equal."""
    if value < 1:
        raise InputError(f"{name} is {value}; allowed: 1 or more")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m engine {name}", description=description, allow_abbrev=False)
    parser.add_argument("prompt", nargs="?", default="The state of a round is", help="text to begin with")
    parser.add_argument("--model", type=Path, metavar="PATH", help="a .gguf file or a model folder; default: SmolLM2")
    parser.add_argument("--kv-cache-dtype", default="float32", help="cache format (default float32)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads; default: every core allowed")
    parser.add_argument("--json", action="store_true", help="one JSON record instead of text")
    return parser


def _config(config: type[EngineConfig], options: argparse.Namespace, *, kv_cache_tokens: int) -> EngineConfig:
    return config(
        model=options.model,
        draft="lookup",
        draft_tokens=options.draft_tokens,
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_cache_tokens=kv_cache_tokens,
        max_sequences=2,
    )
