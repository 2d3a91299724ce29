"""The ops of `engine.ops.functional`, bound to buffers instead of run: each returns a `Call` to be put in a `Program`.

Arguments, checks and results are those of the function of the same name; ``out`` is where the call writes each time it
runs. Binding checks once, so that a decode step pays for no check and for one call out of Python.
"""

from __future__ import annotations

import torch

from engine.ops.functional import Weight
from engine.ops.functional import bind_linear as linear
from engine.ops.packed import PackedQ8_0
from native import ops as native_ops
from native.loader import NativeLibraryError
from native.ops import Call, Program, set_threads, threads
from native.ops import bind_paged_attention as paged_attention
from native.ops import bind_rope_store_kv as rope_store_kv

__all__ = [
    "Call",
    "NativeLibraryError",
    "Program",
    "embedding",
    "linear",
    "paged_attention",
    "rms_norm",
    "rope_store_kv",
    "set_threads",
    "silu_mul",
    "threads",
]


def embedding(ids: torch.Tensor, weight: Weight, *, out: torch.Tensor) -> Call:
    """See `functional.embedding`. Raises ``ValueError`` for a 4-bit weight, whose rows cannot be looked up alone."""
    if isinstance(weight, PackedQ8_0):
        return native_ops.bind_embedding_q8_0(ids, weight.data, weight.n, out)
    if not isinstance(weight, torch.Tensor):
        raise ValueError(f"embedding: saw a {type(weight).__name__}, allowed: PackedQ8_0 or a float tensor [V, H]")
    return native_ops.bind_embedding_dense(ids, weight, out)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> Call:
    """See `functional.rms_norm`."""
    return native_ops.bind_rms_norm(x, weight, eps, out)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor) -> Call:
    """See `functional.silu_mul`."""
    return native_ops.bind_silu_mul(gate_up, out)
