"""Rows of a real model through heads of three precisions: same hidden states, same weights, other arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.ops import functional
from native import ops_cuda
from suites.latency.arms import load_prompts
from suites.oracles import tolerance
from suites.targets import Target

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

TOKENS = 48
CANDIDATES = 64
ROWS_AT_ONCE = 8192  # of the vocabulary, in fp64


@dataclass(frozen=True, slots=True, eq=False)
class RealRows:
    """What a real model computed: final hidden states f32 [N, H], the head f32 [V, H], and the engine's own logits."""

    hidden: F32
    weight: F32
    engine_logits: F32


def real_rows(model: str, monkeypatch: pytest.MonkeyPatch) -> RealRows:
    """Greedy answers of the engine; the head's input and output of every step. Bits do not depend on the machine."""
    from engine.config import EngineConfig
    from engine.llm import LLM
    from engine.model.gguf_file import dequantize, read_gguf
    from engine.model.llama import Llama
    from engine.request import SamplingParams

    hidden, logits = [], []
    bind = Llama.bind_head

    def bind_and_keep(self: Llama, rows: torch.Tensor, normed: torch.Tensor, out: torch.Tensor) -> object:
        program = bind(self, rows, normed, out)

        def run() -> None:
            program()
            hidden.append(normed.clone())
            logits.append(out.clone())

        return run

    monkeypatch.setattr(Llama, "bind_head", bind_and_keep)
    engine = LLM(EngineConfig(model=Path(model), threads=1, max_model_len=512))
    for prompt in load_prompts("right_answers").values():
        engine.generate(engine.chat_prompt(prompt), SamplingParams(max_tokens=TOKENS, stop_token_ids=()))
    tensors = read_gguf(Path(model)).tensors
    weight: F32 = dequantize(tensors.get("output.weight", tensors["token_embd.weight"]))
    return RealRows(torch.cat(hidden).numpy(), weight, torch.cat(logits).numpy())


def exact_logits(hidden: F32, weight: F32) -> F64:
    """fp64 [N, V] of the numbers given, a slice of the vocabulary at a time."""
    left = hidden.astype(np.float64)
    slices = range(0, len(weight), ROWS_AT_ONCE)
    return np.concatenate([left @ weight[at : at + ROWS_AT_ONCE].astype(np.float64).T for at in slices], axis=1)


def fp16_logits(hidden: F32, weight: F32) -> F32:
    """FP32 sums, stored as FP16: what a half-precision head leaves."""
    out: F32 = (torch.from_numpy(hidden) @ torch.from_numpy(weight).T).half().float().numpy()
    return out


def dense_logits(target: Target, hidden: F32, weight: F32) -> F32:
    """The engine's dense head, fp32 out: f32 operands on the CPU, fp16 ones on a GPU (the same numbers)."""
    if target.name == "cuda":
        out = ops_cuda.dense_logits(target.put(hidden, torch.float16), target.put(weight, torch.float16))
    else:
        out = functional.linear(torch.from_numpy(hidden), torch.from_numpy(weight))
    result: F32 = out.cpu().numpy()
    return result


def candidate_logits(target: Target, hidden: F32, weight: F32, coarse: F32) -> F32:
    """fp32 dot products of the CANDIDATES best of a coarse search, -inf elsewhere."""
    out = np.full(coarse.shape, -np.inf, dtype=np.float32)
    ids = np.argsort(-coarse, axis=1, kind="stable")[:, :CANDIDATES]
    if target.name == "cuda":
        on = target.put(hidden, torch.float16), target.put(weight, torch.float16), target.put(ids, torch.int64)
        np.put_along_axis(out, ids, ops_cuda.candidate_logits(*on).cpu().numpy(), axis=1)
        return out
    for row, chosen in enumerate(ids):
        values = functional.linear(torch.from_numpy(hidden[row : row + 1]), torch.from_numpy(weight[chosen]))
        out[row, chosen] = values[0].numpy()
    return out


def fixed_point_bound(hidden: F32, weight: F32) -> F64:
    """By how much any logit of each row may be off because activations are held in fixed point; fp64 [N]."""
    left = hidden.astype(np.float64)
    worst = np.zeros(len(hidden))
    for at in range(0, len(weight), ROWS_AT_ONCE):
        right = weight[at : at + ROWS_AT_ONCE].astype(np.float64)
        none = tolerance.exact(np.zeros((len(hidden), len(right))))
        worst = np.maximum(worst, tolerance.fixed_point(none, left, right).limit.max(axis=1))
    return worst
