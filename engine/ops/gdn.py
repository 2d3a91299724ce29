"""Gated DeltaNet: convolution with state, gates, the recurrence token by token or in chunks, gated norm.

Faces like those of `engine.ops.functional`, which re-exports them; the plain twins are in `engine.ops.gdn_reference`.
Activations and the convolution's state are float32 on the CPU and float16 on CUDA; the recurrent state is float32.

State slots, the same for every op: a sequence starts from slot ``initial_slots[b]`` and leaves the state after its
token t in slot ``slots[t]``, so a speculative round keeps one state for each drafted position and the next round starts
from the slot of the last accepted one. -1 in ``slots``: not kept. -1 in ``initial_slots``: a padded sequence; no state
is read or written and its rows of the output are zero. A fresh sequence starts from a slot that holds zeros. No two
sequences of a call may write one slot, and none may write another's initial slot.
"""

from __future__ import annotations

import torch

from engine.ops.placement import on_cuda
from native import ops as native_ops
from native import ops_cuda


def gdn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Depthwise causal convolution of four taps, then SiLU: y_t = silu(sum_i weight[:, i] x_{t-3+i}), [T, C].

    Args:
        x: [T, C], rows may be strided.
        weight: float32 [C, 4].
        state: [S, 3, C], contiguous; the three rows before the next token, oldest first.
        initial_slots: int32 [B].
        slots: int32 [T].
        query_start: int32 [B + 1], cumulative, from 0 to T.
        out: [T, C].
    """
    if on_cuda("gdn_conv", x):
        return ops_cuda.gdn_conv(x, weight, state, initial_slots, slots, query_start, out=out)
    return native_ops.bind_gdn_conv(x, weight, state, initial_slots, slots, query_start, out)()


def gdn_gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay -exp(a_log) softplus(a + dt_bias) (<= 0) and beta = sigmoid(b), float32 [T, Hv] each.

    Args:
        a, b: [T, Hv], rows may be strided.
        a_log, dt_bias: float32 [Hv].
    """
    if on_cuda("gdn_gates", a):
        return ops_cuda.gdn_gates(a, b, a_log, dt_bias)
    call, beta = native_ops.bind_gdn_gates(a, b, a_log, dt_bias)
    return call(), beta


def gdn_recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The delta rule, token by token: decay the state, read it with k, write the correction, read it with q.

    q and k are L2-normed here (eps 1e-6 inside the root), q then times dk^-1/2; value head j uses key head
    j // (Hv / Hk). -> [T, Hv, dv].

    Args:
        q, k: [T, Hk, dk]; tokens may be strided.
        v: [T, Hv, dv]; tokens may be strided.
        log_decay, beta: float32 [T, Hv].
        state: float32 [S, Hv, dv, dk], contiguous.
        initial_slots: int32 [B].
        slots: int32 [T].
        query_start: int32 [B + 1], cumulative, from 0 to T.
        out: [T, Hv, dv]; tokens may be strided.
    """
    if on_cuda("gdn_recurrent", q):
        return ops_cuda.gdn_recurrent(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out=out)
    return native_ops.bind_gdn_recurrent(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out)()


def gdn_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`gdn_recurrent` in chunks of 64 tokens, for prefill: the same answer up to float32 rounding.

    Only the last token of a sequence may name a slot.
    """
    if on_cuda("gdn_chunk", q):
        return ops_cuda.gdn_chunk(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out=out)
    return native_ops.bind_gdn_chunk(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out)()


def gdn_gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * silu(z) over a head, [T, Hv, dv].

    Args:
        x, z: [T, Hv, dv]; tokens may be strided.
        weight: float32 [dv], shared by the heads.
        eps: positive, inside the square root.
        out: [T, Hv, dv]; tokens may be strided.
    """
    if on_cuda("gdn_gated_rms_norm", x):
        return ops_cuda.gdn_gated_rms_norm(x, z, weight, eps, out=out)
    return native_ops.bind_gdn_gated_rms_norm(x, z, weight, eps, out)()
