"""A forced prefix: known tokens through a model, round by round, with everything that a comparison needs kept.

``python -m engine.diagnostics.forced`` is one such run in a process of its own: a JSON request on standard input, the
tensors into the .npz file that it names, one JSON line as the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.config import EngineConfig
from engine.diagnostics.snapshot import snapshot
from engine.errors import InputError
from engine.llm import LLM
from engine.model.runner import SequenceRows
from engine.request import SamplingParams
from engine.sampling.cutoffs import RowSettings, plan_cutoffs
from engine.sampling.distributions import target_probs

PROBS = "probabilities"
UNUSABLE = 2
"""Exit code of a process whose input cannot be used; its standard error says why."""
SWITCHES = ("kv_cache_dtype", "threads", "block_size", "prefill_chunk")
"""Settings of `EngineConfig` that one of two runs may have otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRun:
    """What to run: ``tokens`` as given, or a prompt and as many greedy tokens as ``continue_by`` after it."""

    prompt: str
    tokens: tuple[int, ...]
    continue_by: int
    model: str | None
    settings: dict[str, Any]
    temperature: float
    top_k: int
    top_p: float


def config_of(run: ForcedRun, switch: str = "") -> EngineConfig:
    """The engine's settings, with ``switch`` (NAME=VALUE) changed. Raises ``InputError`` for one that means nothing."""
    settings = dict(run.settings)
    config = EngineConfig(max_sequences=1, model=Path(run.model) if run.model else None, draft="lookup")
    if switch:
        name, given, value = switch.partition("=")
        name = name.replace("-", "_")
        if not given or name not in SWITCHES:
            raise InputError(f"switch {switch!r}; allowed: NAME=VALUE with NAME of {', '.join(SWITCHES)}")
        is_text = isinstance(getattr(config, name), str)
        if not is_text and not value.isdecimal():
            raise InputError(f"switch {switch!r}; allowed: {name} with a whole number")
        settings[name] = value if is_text else int(value)
    return replace(config, **settings)


def force(llm: LLM, tokens: Sequence[int], params: SamplingParams) -> dict[str, npt.NDArray[Any]]:
    """Every layer's cache rows and states after ``tokens``, and the law of the next token at each position.

    The law [T, V] is fp64, after temperature and cutoffs, exactly what a token is drawn from.
    """
    model, rows_at_once = llm.model, llm.runner.max_logit_rows
    sequence = model.pools.sequence(tokens)
    laws = []
    for start in range(0, len(tokens), rows_at_once):
        chunk = tokens[start : start + rows_at_once]
        reservation = sequence.reserve(len(chunk))
        rows = SequenceRows(chunk, reservation, sequence.block_table, num_logits=len(chunk))
        logits = llm.runner.forward([rows])
        settings = RowSettings.of([params] * len(chunk))
        laws.append(target_probs(logits, plan_cutoffs(logits, settings), settings.temperature).cpu().numpy())
        sequence.commit(len(chunk))
    tensors = {name: tensor.float().cpu().numpy() for name, tensor in snapshot(model, sequence).items()}
    sequence.release()
    return {**tensors, PROBS: np.concatenate(laws)}


def tokens_of(llm: LLM, run: ForcedRun) -> tuple[int, ...]:
    """The tokens to force."""
    if run.tokens:
        return run.tokens
    prompt = llm.tokenizer.encode(run.prompt)
    reply = llm.generate(prompt, SamplingParams(max_tokens=run.continue_by, stop_token_ids=()))
    return (*prompt, *reply.token_ids)


def main() -> int:
    """One run, as the module's docstring says. Input that cannot be used is one line and exit code 2."""
    try:
        _run()
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return UNUSABLE
    return 0


def _run() -> None:
    request = json.load(sys.stdin)
    run = ForcedRun(**{**request["run"], "tokens": tuple(request["run"]["tokens"])})
    llm = LLM(config_of(run, request["switch"]))
    tokens = tokens_of(llm, run)
    params = SamplingParams(temperature=run.temperature, top_k=run.top_k, top_p=run.top_p)
    np.savez(request["out"], **force(llm, tokens, params))  # type: ignore[arg-type]  # numpy's stub: keywords are arrays
    json.dump({"tokens": tokens}, sys.stdout)


def request_json(run: ForcedRun, switch: str, out: Path) -> str:
    """What `main` reads."""
    return json.dumps({"run": asdict(run), "switch": switch, "out": str(out)})


if __name__ == "__main__":
    sys.exit(main())
