"""llama.cpp behind the benchmark's line protocol; runs under the interpreter that has ``llama_cpp``, imports no more.

Greedy, through the C interface and its own greedy sampler, so that no Python of the binding stands in the peer's way.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp

CONTEXT = 2048
BATCH = 512


class Peer:
    """One context over one model file."""

    def __init__(self, model: str, threads: int) -> None:
        llama_cpp.llama_log_set(_QUIET, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, BATCH, BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._greedy = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, prompt: list[int], count: int) -> dict[str, Any]:
        """``count`` greedy tokens; seconds from the first to the last of them."""
        tokens = [self._fresh(prompt)]
        start = time.perf_counter()
        for position in range(len(prompt), len(prompt) + count - 1):
            self._evaluate(tokens[-1:], position, 1)
            tokens.append(self._sample())
        return {"seconds": time.perf_counter() - start, "tokens": tokens}

    def prefill(self, prompt: list[int]) -> dict[str, Any]:
        """Seconds from a prompt to its first token."""
        start = time.perf_counter()
        first = self._fresh(prompt)
        return {"seconds": time.perf_counter() - start, "tokens": [first]}

    def verify(self, prompt: list[int], rows: int, passes: int) -> dict[str, Any]:
        """Seconds of each of ``passes`` forwards of ``rows`` rows, logits for all, after the same context."""
        self._fresh(prompt)
        seconds = []
        for _ in range(passes):
            start = time.perf_counter()
            self._evaluate(prompt[:rows], len(prompt), rows)
            llama_cpp.llama_get_logits_ith(self._context, rows - 1)
            seconds.append(time.perf_counter() - start)
            llama_cpp.llama_memory_seq_rm(self._memory, 0, len(prompt), -1)
        return {"seconds": seconds}

    def about(self) -> dict[str, Any]:
        """Resident memory and what the library says of itself."""
        return {
            "resident_mib": resident_mib(),
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "build": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def _fresh(self, prompt: list[int]) -> int:
        llama_cpp.llama_memory_clear(self._memory, False)
        for begin in range(0, len(prompt), BATCH):
            self._evaluate(prompt[begin : begin + BATCH], begin, 1)
        return self._sample()

    def _sample(self) -> int:
        return int(llama_cpp.llama_sampler_sample(self._greedy, self._context, -1))

    def _evaluate(self, tokens: list[int], position: int, logits: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, position + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index >= len(tokens) - logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise SystemExit(f"llama_decode failed with {status}")


_QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


def resident_mib() -> float:
    """Resident memory of this process, MiB."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def serve(worker: Any) -> None:
    """Answer each JSON line ``{"call": name, ...arguments}`` on stdin with one on stdout."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("call"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", required=True)
    options.add_argument("--threads", type=int, required=True)
    given = options.parse_args()
    serve(Peer(given.model, given.threads))
