"""One reply on the command line: what a rank does, and the figures that rank 0 prints after it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from engine.config import EngineConfig
from engine.errors import InputError
from engine.request import SamplingParams

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.parallel.group import Group
    from engine.result import GenerationResult

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def reply(group: Group | None, options: argparse.Namespace, config: EngineConfig, params: SamplingParams) -> int:
    """What one rank does; rank 0 prints. Returns the exit code."""
    message: str = options.prompt
    with _interrupts_kept():
        from engine.llm import LLM  # torch and the model code: not for --help and not for a wrong option
        from engine.ops.bound import NativeLibraryError

        try:
            llm = LLM(config, group)
        except NativeLibraryError as error:
            raise InputError(str(error)) from error
    if group is not None and group.rank:
        llm.follow()
        return EXIT_OK
    prompt = llm.tokenizer.encode(message) if options.raw else llm.chat_prompt(message, options.system)
    generation = llm.stream(prompt, params)
    code = EXIT_OK
    try:
        for piece in generation:
            if not options.json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        code = output_lost(error)
        llm.close()  # it came between two steps, where the others wait
        return code
    else:
        llm.close()  # after an interrupt the others may be anywhere; whoever started them ends them
    result = generation.result()
    try:
        print(json.dumps(_record(result, llm), indent=2) if options.json else f"\n\n{figures(result)}", flush=True)
    except OSError as error:
        return output_lost(error)
    if result.error is not None:
        print(f"error: {result.error}", file=sys.stderr)
        return EXIT_FAILED
    return code


def output_lost(error: OSError) -> int:
    """The exit code when standard output takes no more. That a reader has gone is no failure; a full disk is.

    Raises ``error`` again where it is about something else.
    """
    if not isinstance(error, BrokenPipeError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        raise error
    # Nothing more can be said there; a second complaint at exit would say nothing new.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return EXIT_OK
    print(f"error: the output cannot be written: {error.strerror}; make room or write elsewhere", file=sys.stderr)
    return EXIT_FAILED


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
        "tp": llm.config.tp,
        "device": llm.config.device,
        "attention_routes": llm.runner.attention.routes(),
        "linear_kernels": llm.runner.kernels.ran,
        "draft": llm.config.draft,
        "rejection": llm.config.rejection,
        "overhead_share": result.overhead_share,
        "step_times_ms": [
            {name.removesuffix("_s"): 1000 * seconds for name, seconds in asdict(times).items()}
            for times in result.step_times
        ],
        "context_rounds": llm.context.rounds,
        "logprobs": [asdict(report) for report in result.logprobs],
    }
