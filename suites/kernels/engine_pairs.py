"""The engine on the CPU and on the device over the same model: answers side by side, and small models for it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from native.cuda_bindings import launch
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, random_tensors, write_checkpoint
from suites.oracles import tolerance
from suites.oracles.arrays import F64

if TYPE_CHECKING:
    from engine.llm import LLM

PROMPT = (5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15)

EVERY_TOKEN = tuple(range(3, 99))
"""A prompt that holds whatever comes next, with what follows it: lookup drafts full blocks."""

ROUNDINGS_A_LAYER = 10
"""Activations of a layer that are stored in float16 one after another: norm, projection, convolution or RoPE, softmax
weights or rule, mixed heads, residual; norm, gate and up, their product, residual."""

# Query heads, KV heads, head size: the smallest that the policy routes, and the published model's own at TP4.
SMALL_HEADS = (4, 2, 64)
PUBLISHED_HEADS = (6, 1, 256)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A token that the CPU would not have taken at a position, the gap of its logits there, and what may close it."""

    position: int
    wanted: int
    taken: int
    gap: float
    allowed: float


@functools.cache
def hybrid_folder(heads: tuple[int, int, int], context: int = 256) -> Path:
    """A random hybrid checkpoint whose matrices are exact in float16, so that only activations differ by device."""
    query_heads, kv_heads, head_dim = heads
    tensors = _in_halves(random_tensors(attention=heads))
    config: dict[str, Any] = CONFIG | {
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
    }
    return write_checkpoint(Path(mkdtemp(prefix="sm70-hybrid-")), tensors, config)


@functools.cache
def nvfp4_folder() -> Path:
    """A random hybrid checkpoint whose projections are packed as NVFP4 checkpoints have them, one global scale."""
    from safetensors.torch import load_file, save_file

    from engine.linear import nvfp4

    tensors = _in_halves(random_tensors(hidden=64, inner=96, value_dim=16, attention=SMALL_HEADS))
    sizes = {"hidden_size": 64, "intermediate_size": 96, "linear_value_head_dim": 16, "head_dim": SMALL_HEADS[2]}
    folder = write_checkpoint(Path(mkdtemp(prefix="sm70-nvfp4-")), tensors, CONFIG | sizes)
    weights = load_file(folder / "model.safetensors")
    projections = [name for name in weights if "proj" in name]
    scale = nvfp4.global_scale_of([weights[name] for name in projections])
    for name in projections:
        packed = nvfp4.store(*nvfp4.quantize(weights[name], scale), scale)
        weights |= {name: packed.codes, f"{name}_scale": packed.scales, f"{name}_scale_2": scale.clone()}
    save_file(weights, folder / "model.safetensors")
    return folder


def _in_halves(tensors: dict[str, F64]) -> dict[str, F64]:
    """Matrices rounded to float16."""
    return {
        name: tensor.astype(np.float16).astype(np.float64) if tensor.ndim == 2 else tensor
        for name, tensor in tensors.items()
    }


@functools.cache
def draft_folder() -> Path:
    """A random DFlash2 draft model for `hybrid_folder` of the small heads."""
    config = draft_config(CONFIG, selector_rank=16)  # the kernels read rows of whole 16 bytes
    return write_draft(Path(mkdtemp(prefix="sm70-draft-")), random_draft(config), config)


def engine(model: Path, device: str, **settings: Any) -> LLM:
    """An engine for one or two requests; ``device`` "cuda" is the emulation where that is in force."""
    from engine.config import EngineConfig
    from engine.llm import LLM

    defaults: dict[str, Any] = {"model": model, "max_sequences": 2, "threads": 2, "lookup_min": 1}
    return LLM(EngineConfig(**defaults | settings, device=device))


def greedy(llm: LLM, count: int, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    """``count`` tokens, whatever they are."""
    from engine.request import SamplingParams

    result = llm.generate(prompt, SamplingParams(max_tokens=count, stop_token_ids=()))
    assert len(result.token_ids) == count, result.error
    return tuple(result.token_ids)


def logits_of(llm: LLM, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits after every token of a text from one forward, f32 [T, V] on the host."""
    from engine.model.runner import SequenceRows

    sequence = llm.pools.sequence(tokens)
    rows = sequence.reserve(len(tokens), all_stay=True)
    batch = [SequenceRows(tokens, rows, sequence.block_table, len(tokens))]
    logits = llm.runner.forward(batch, prefill=True).cpu().clone()
    sequence.release()
    return logits


def judged_by_cpu(
    model: Path, layers: int, prompt: tuple[int, ...], answer: tuple[int, ...], cache: str = "auto"
) -> list[Disagreement]:
    """Where the CPU, told every token up to there, would have gone on otherwise than ``answer``."""
    text = (*prompt, *answer[:-1])
    with launch.suspended():
        # Wide enough that one forward may give the logits of every row.
        llm = engine(
            model,
            "cpu",
            kv_cache_dtype=cache,
            draft="lookup",
            draft_tokens=31,
            max_sequences=-(-len(text) // 32),
            prefill_chunk=len(text),
        )
        logits = logits_of(llm, text)[len(prompt) - 1 :]
    found = []
    for position, (row, taken) in enumerate(zip(logits, answer, strict=True)):
        wanted = int(row.argmax())
        if wanted != taken:
            allowed = tolerance.half_logit_gap(float(row.abs().max()), ROUNDINGS_A_LAYER * layers)
            found.append(Disagreement(position, wanted, taken, float(row[wanted] - row[taken]), allowed))
    return found
