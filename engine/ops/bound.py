"""The ops of `engine.ops.functional`, bound to buffers instead of run: each returns a step, `program` joins them.

Arguments and results are those of the function of the same name; ``out`` is where the step writes each time it runs. On
the CPU a step is a native `Call`: it is checked once, and a `Program` runs many with one call out of Python. On CUDA it
launches on the current stream and checks each time, because a captured graph pays for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch

from engine.ops import functional
from engine.ops.functional import FULL_WINDOW, PackedNvfp4, Weight
from engine.ops.packed import PackedQ8_0
from engine.ops.placement import on_cuda
from native import ops as native_ops
from native import ops_cuda
from native.loader import NativeLibraryError
from native.ops import Call, Program, set_threads, threads

__all__ = [
    "Call",
    "NativeLibraryError",
    "Program",
    "StateSlots",
    "Step",
    "embedding",
    "gdn_conv",
    "gdn_gated_rms_norm",
    "gdn_gates",
    "gdn_rule",
    "head",
    "linear",
    "linear_few_rows",
    "paged_attention",
    "program",
    "rms_norm",
    "rope_store_kv",
    "set_threads",
    "sigmoid_gate",
    "silu_mul",
    "store_kv",
    "threads",
]

Step = Call | Callable[[], object]


def program(steps: Sequence[Step]) -> Callable[[], None]:
    """All ``steps`` in order; neighbours that the native CPU library runs go down in one call."""
    parts: list[Callable[[], object]] = []
    for _, neighbours in groupby(steps, key=lambda step: isinstance(step, Call)):
        run = list(neighbours)
        calls = [step for step in run if isinstance(step, Call)]
        parts += [Program(calls)] if calls else run

    def run_all() -> None:
        for part in parts:
            part()

    return run_all


def embedding(ids: torch.Tensor, weight: Weight, *, out: torch.Tensor) -> Step:
    """See `functional.embedding`. Raises ``ValueError`` for a 4-bit weight, whose rows cannot be looked up alone."""
    if not isinstance(weight, torch.Tensor | PackedQ8_0):
        raise ValueError(f"embedding: saw a {type(weight).__name__}, allowed: PackedQ8_0 or a float tensor [V, H]")
    if on_cuda("embedding_q8_0" if isinstance(weight, PackedQ8_0) else "embedding_dense", ids):
        return partial(functional.embedding, ids, weight, out=out)
    if isinstance(weight, PackedQ8_0):
        return native_ops.bind_embedding_q8_0(ids, weight.data, weight.n, out)
    return native_ops.bind_embedding_dense(ids, weight, out)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> Step:
    """See `functional.rms_norm`."""
    if on_cuda("rms_norm", x):
        return partial(ops_cuda.rms_norm, x, weight, eps, out=out)
    return native_ops.bind_rms_norm(x, weight, eps, out)


def linear(x: torch.Tensor, weight: Weight, *, residual: torch.Tensor | None = None, out: torch.Tensor) -> Step:
    """See `functional.linear`."""
    if _device_runs(x):
        return partial(functional.linear, x, weight, residual=residual, out=out)
    return functional.bind_linear(x, weight, residual=residual, out=out)


def linear_few_rows(
    x: torch.Tensor, weight: PackedNvfp4, *, residual: torch.Tensor | None = None, out: torch.Tensor
) -> Step:
    """See `functional.linear_few_rows`."""
    if _device_runs(x):
        return partial(functional.linear_few_rows, x, weight, residual=residual, out=out)
    return functional.bind_linear_few_rows(x, weight, residual=residual, out=out)


def head(x: torch.Tensor, weight: Weight, *, out: torch.Tensor) -> Step:
    """Logits, float32 [M, V] on every device: `linear` whose sums are never rounded to float16."""
    if not _device_runs(x):
        return functional.bind_linear(x, weight, out=out)
    return partial(functional.cuda_linear, x, weight, out=out, out_dtype=torch.float32)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor) -> Step:
    """See `functional.silu_mul`."""
    if on_cuda("silu_mul", gate_up):
        return partial(ops_cuda.silu_mul, gate_up, out=out)
    return native_ops.bind_silu_mul(gate_up, out)


def rope_store_kv(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool,
    q_out: torch.Tensor,
) -> Step:
    """See `functional.rope_store_kv`."""
    caches = (k_cache, v_cache, slot_mapping)
    if on_cuda("rope_store_kv", qkv):
        store = partial(ops_cuda.rope_store_kv, qkv, cos_sin, positions, *caches)
        return partial(store, interleaved=interleaved, q_out=q_out)
    return native_ops.bind_rope_store_kv(qkv, cos_sin, positions, *caches, interleaved=interleaved, q_out=q_out)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> Step:
    """See `functional.store_kv`."""
    if on_cuda("store_kv", k):
        return partial(ops_cuda.store_kv, k, v, k_cache, v_cache, slot_mapping)
    return native_ops.bind_store_kv(k, v, k_cache, v_cache, slot_mapping)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int, int] = FULL_WINDOW,
    out: torch.Tensor,
) -> Step:
    """See `functional.paged_attention`."""
    places = (block_table, seq_lens, query_start)
    if on_cuda("paged_attention", q):
        attend = partial(ops_cuda.paged_attention, q, k_cache, v_cache, *places)
        return partial(attend, scale=scale, causal=causal, window=window, out=out)
    return native_ops.bind_paged_attention(
        q, k_cache, v_cache, *places, scale=scale, causal=causal, window=window, out=out
    )


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Which recurrent states a forward reads and writes; see `engine.ops.gdn`."""

    initial: torch.Tensor  # int32 [B]
    after: torch.Tensor  # int32 [T]
    query_start: torch.Tensor  # int32 [B + 1]


def gdn_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, slots: StateSlots, *, out: torch.Tensor
) -> Step:
    """See `functional.gdn_conv`."""
    places = (slots.initial, slots.after, slots.query_start)
    if on_cuda("gdn_conv", x):
        return partial(ops_cuda.gdn_conv, x, weight, state, *places, out=out)
    return native_ops.bind_gdn_conv(x, weight, state, *places, out)


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
) -> Step:
    """See `functional.gdn_gates`; the results go to ``log_decay`` and ``beta``, float32 [T, Hv]."""
    if on_cuda("gdn_gates", a):
        return partial(ops_cuda.gdn_gates, a, b, a_log, dt_bias, log_decay=log_decay, beta=beta)
    return native_ops.bind_gdn_gates(a, b, a_log, dt_bias, log_decay, beta)[0]


def gdn_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    state: torch.Tensor,
    slots: StateSlots,
    *,
    chunked: bool,
    out: torch.Tensor,
) -> Step:
    """The delta rule with ``gates`` (log decay, beta): `functional.gdn_chunk` or `functional.gdn_recurrent`."""
    arguments = (q, k, v, *gates, state, slots.initial, slots.after, slots.query_start)
    if on_cuda("gdn_chunk" if chunked else "gdn_recurrent", q):
        return partial(ops_cuda.gdn_chunk if chunked else ops_cuda.gdn_recurrent, *arguments, out=out)
    return (native_ops.bind_gdn_chunk if chunked else native_ops.bind_gdn_recurrent)(*arguments, out)


def gdn_gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor
) -> Step:
    """See `functional.gdn_gated_rms_norm`."""
    if on_cuda("gdn_gated_rms_norm", x):
        return partial(ops_cuda.gdn_gated_rms_norm, x, z, weight, eps, out=out)
    return native_ops.bind_gdn_gated_rms_norm(x, z, weight, eps, out)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> Step:
    """x * sigmoid(gate) into ``x`` [T, N], in float32 with one rounding."""
    if _device_runs(x):
        return lambda: x.copy_(x.float() * gate.float().sigmoid())

    def row_by_row() -> None:
        # Torch's CPU sigmoid takes another path for the end of a tensor: an element's bits would depend on T otherwise.
        for row, its_gate in zip(x, gate, strict=True):
            row *= its_gate.sigmoid()

    return row_by_row


def _device_runs(tensor: torch.Tensor) -> bool:
    """Whether a linear over ``tensor`` launches on a device; `functional.linear` asks for its own kernel."""
    return tensor.device.type == ops_cuda.device_type()
