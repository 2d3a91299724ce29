"""Our engine behind the benchmark's line protocol: the same three calls as the peer's worker."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig, read_environment
from engine.llm import LLM
from engine.loading import load_model
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from engine.steps.prefill import PrefillChunk, prefill
from engine.steps.records import PointLaw, Proposal
from engine.steps.verify import VerifyItem, verify
from native import loader, ops

CONTEXT = 2048
ENDLESS: tuple[int, ...] = ()


class Ours:
    """One engine; every call starts from an empty context."""

    def __init__(self, model: str, threads: int) -> None:
        defaults = read_environment(os.environ)
        path = Path(model) if model else defaults.model
        self._config = EngineConfig(model=path, threads=threads, max_model_len=CONTEXT, draft="lookup")
        self._llm = LLM(replace(self._config, draft="none"))
        # The model without the round loop around it; loaded when verification is measured, after memory was read.
        self._bare = functools.cache(lambda: load_model(self._config))

    def decode(self, prompt: list[int], count: int) -> dict[str, Any]:
        """``count`` greedy tokens; seconds from the first to the last of them."""
        result = self._llm.generate(prompt, SamplingParams(max_tokens=count, stop_token_ids=ENDLESS))
        return {"seconds": result.token_ts[-1] - result.token_ts[0], "tokens": result.token_ids}

    def prefill(self, prompt: list[int]) -> dict[str, Any]:
        """Seconds from a prompt to its first token."""
        result = self._llm.generate(prompt, SamplingParams(max_tokens=1, stop_token_ids=ENDLESS))
        return {"seconds": result.token_ts[0] - result.arrival_ts, "tokens": result.token_ids}

    def verify(self, prompt: list[int], rows: int, passes: int) -> dict[str, Any]:
        """Seconds of each of ``passes`` verifications of ``rows`` rows after one context; nothing is committed."""
        params = SamplingParams(stop_token_ids=ENDLESS)
        bare = self._bare()
        sequence = SequenceState(prompt, bare.pool)
        while sequence.num_to_prefill > 1:
            chunk = min(sequence.num_to_prefill - 1, self._llm.config.prefill_chunk)
            prefill(bare.runner, [PrefillChunk(sequence, params, chunk)])
            sequence.commit(chunk)
        drafts = tuple(prompt[: rows - 1])
        item = VerifyItem(sequence, params, Proposal(drafts, tuple(PointLaw(token) for token in drafts)))
        seconds = []
        for _ in range(passes):
            start = time.perf_counter()
            verify(bare.runner, [item])
            seconds.append(time.perf_counter() - start)
            sequence.commit(0)
        sequence.release()
        return {"seconds": seconds}

    def chat(self, message: str) -> dict[str, Any]:
        """The prompt of one user message."""
        return {"prompt": self._llm.chat_prompt(message)}

    def about(self) -> dict[str, Any]:
        """Resident memory and what runs."""
        status = Path("/proc/self/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return {
            "resident_mib": int(resident.split()[1]) / 1024,
            "version": f"native {loader.library_sha256()[:12]}",
            "build": ops.isa(),
        }


def serve(worker: Any) -> None:
    """Answer each JSON line ``{"call": name, ...arguments}`` on stdin with one on stdout."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("call"))(**request)), flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="")
    options.add_argument("--threads", type=int, required=True)
    given = options.parse_args()
    serve(Ours(given.model, given.threads))
