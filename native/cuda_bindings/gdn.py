"""Gated DeltaNet on CUDA: convolution with state, gates, the recurrence token by token or in chunks, gated norm.

State slots, the same for every op: a sequence starts from slot ``initial_slots[b]`` and, after its token t, leaves its
state in slot ``slots[t]``, so a speculative round keeps one state for each drafted position and the next round starts
from the slot of the last accepted one. -1 in ``slots``: not kept. -1 in ``initial_slots``: a padded sequence; nothing
is read or written and its rows of the output are zero. A fresh sequence starts from a slot that holds zeros. The
initial slot may be written too. Slots that do not exist are raised by `faults.raise_on_fault`.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch

from native.cuda_bindings import check, faults, launch

TAPS = 4
CHUNK = 64
MAX_KEY_DIM = 128


class _ConvArgs(ctypes.Structure):
    """GdnConvArgs of native/cuda/gdn.h, field for field."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in ("x", "weight", "state", "initial_slots", "slots", "query_start", "out", "fault")
        ),
        *((name, c_int64) for name in ("tokens", "batch", "channels", "states", "x_stride", "out_stride")),
    )


class _Args(ctypes.Structure):
    """GdnArgs of native/cuda/gdn.h, field for field."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "log_decay", "beta", "state", "initial_slots", "slots")),
        *((name, c_void_p) for name in ("query_start", "out", "fault", "w", "u", "p", "factors", "decays")),
        *(
            (name, c_int64)
            for name in ("tokens", "batch", "key_heads", "value_heads", "key_dim", "value_dim", "states")
        ),
        *((name, c_int64) for name in ("q_token_stride", "k_token_stride", "v_token_stride", "out_token_stride")),
        ("chunks", c_int64),
    )


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
    """Depthwise causal convolution of four taps, then SiLU: y_t = silu(sum_i weight[:, i] x_{t-3+i}), in float32.

    Args:
        x: float16 [T, C], rows may be strided.
        weight: float32 [C, 4].
        state: float16 [S, 3, C], contiguous; the three rows before the next token, oldest first.
        initial_slots: int32 [B]. slots: int32 [T]; only the last 64 tokens of a sequence may name one.
        query_start: int32 [B + 1], cumulative, from 0 to T.
        out: float16 [T, C].
    """
    check.tensor("x", x, torch.float16, (None, None), contiguous=False)
    tokens, channels = x.shape
    check.tensor("weight", weight, torch.float32, (channels, TAPS), like=x)
    check.tensor("state", state, torch.float16, (None, TAPS - 1, channels), like=x)
    batch = _check_slots(initial_slots, slots, query_start, tokens, x)
    out = check.output("out", out, torch.float16, (tokens, channels), x)
    if out.numel() == 0 or batch == 0:
        return out
    args = _ConvArgs(
        *(t.data_ptr() for t in (x, weight, state, initial_slots, slots, query_start, out, faults.buffer(x.device))),
        *(tokens, batch, channels, state.shape[0], x.stride(0), out.stride(0)),
    )
    launch.run("gdn_conv", 1, x.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))
    return out


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay -exp(a_log) softplus(a + dt_bias) (<= 0) and beta = sigmoid(b), float32 [T, Hv] each.

    Args:
        a, b: float16 [T, Hv], rows may be strided.
        a_log, dt_bias: float32 [Hv].
        log_decay, beta: where the results go, float32 [T, Hv].
    """
    check.tensor("a", a, torch.float16, (None, None), contiguous=False)
    tokens, heads = a.shape
    check.tensor("b", b, torch.float16, (tokens, heads), like=a, contiguous=False)
    check.tensor("a_log", a_log, torch.float32, (heads,), like=a)
    check.tensor("dt_bias", dt_bias, torch.float32, (heads,), like=a)
    log_decay = check.output("log_decay", log_decay, torch.float32, (tokens, heads), a, contiguous=True)
    beta = check.output("beta", beta, torch.float32, (tokens, heads), a, contiguous=True)
    if log_decay.numel():
        inputs = (a, c_int64(a.stride(0)), b, c_int64(b.stride(0)), a_log, dt_bias)
        launch.run("gdn_gates", 1, a.device, (*inputs, log_decay, beta, c_int64(tokens), c_int(heads)))
    return log_decay, beta


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
    j // (Hv / Hk). Everything is float32 but the inputs and the output.

    Args:
        q, k: float16 [T, Hk, dk], dk a multiple of 4 up to 128; tokens may be strided.
        v: float16 [T, Hv, dv]; tokens may be strided.
        log_decay, beta: float32 [T, Hv].
        state: float32 [S, Hv, dv, dk], contiguous.
        initial_slots: int32 [B]. slots: int32 [T]. query_start: int32 [B + 1], cumulative, from 0 to T.
        out: float16 [T, Hv, dv]; tokens may be strided.
    """
    args, out = _bind(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out)
    if out.numel() and args.batch:
        launch.run("gdn_recurrent", 1, q.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))
    return out


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
    args, out = _bind(q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out)
    if out.numel() == 0 or args.batch == 0:
        return out
    chunks = args.tokens // CHUNK + args.batch
    heads = args.value_heads
    columns = (args.key_dim, args.value_dim, CHUNK, 2)
    scratch = [torch.empty(chunks, heads, CHUNK, n, dtype=torch.float32, device=q.device) for n in columns]
    decays = scratch[0].new_empty(chunks, heads)
    args.w, args.u, args.p, args.factors = (array.data_ptr() for array in scratch)
    args.decays = decays.data_ptr()
    args.chunks = chunks
    launch.run("gdn_chunk", 1, q.device, (ctypes.byref(args), c_int64(ctypes.sizeof(args))))
    return out


def gdn_gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * silu(z) over a head, in float32 with one rounding.

    Args:
        x, z: float16 [T, Hv, dv]; tokens may be strided.
        weight: float32 [dv], shared by the heads.
        eps: positive, inside the square root.
        out: float16 [T, Hv, dv]; tokens may be strided.
    """
    check.tensor("x", x, torch.float16, (None, None, None), contiguous=False)
    tokens, heads, dim = x.shape
    check.tensor("z", z, torch.float16, (tokens, heads, dim), like=x, contiguous=False)
    check.tensor("weight", weight, torch.float32, (dim,), like=x)
    check.positive("eps", eps)
    out = check.output("out", out, torch.float16, (tokens, heads, dim), x)
    for name, rows in (("x", x), ("z", z), ("out", out)):
        check.heads_together(name, rows)
    if out.numel():
        inputs = (x, c_int64(x.stride(0)), z, c_int64(z.stride(0)), weight, out, c_int64(out.stride(0)))
        sizes = (c_int64(tokens * heads), c_int(heads), c_int(dim), c_float(eps))
        launch.run("gdn_gated_rms_norm", 1, x.device, (*inputs, *sizes))
    return out


def _bind(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    out: torch.Tensor | None,
) -> tuple[_Args, torch.Tensor]:
    check.tensor("q", q, torch.float16, (None, None, None), contiguous=False)
    tokens, key_heads, key_dim = q.shape
    check.tensor("k", k, torch.float16, (tokens, key_heads, key_dim), like=q, contiguous=False)
    check.tensor("v", v, torch.float16, (tokens, None, None), like=q, contiguous=False)
    value_heads, value_dim = v.shape[1:]
    if not 0 < key_dim <= MAX_KEY_DIM or key_dim % 4:
        raise ValueError(f"q: saw key dimension {key_dim}, allowed are multiples of 4 up to {MAX_KEY_DIM}")
    if key_heads == 0 or value_heads == 0 or value_heads % key_heads:
        raise ValueError(f"v: saw {value_heads} value heads over {key_heads} key heads, need a positive multiple")
    check.tensor("log_decay", log_decay, torch.float32, (tokens, value_heads), like=q)
    check.tensor("beta", beta, torch.float32, (tokens, value_heads), like=q)
    check.tensor("state", state, torch.float32, (None, value_heads, value_dim, key_dim), like=q)
    batch = _check_slots(initial_slots, slots, query_start, tokens, q)
    out = check.output("out", out, torch.float16, (tokens, value_heads, value_dim), q)
    for name, rows in (("q", q), ("k", k), ("v", v), ("out", out)):
        check.heads_together(name, rows)
    args = _Args(
        *(t.data_ptr() for t in (q, k, v, log_decay, beta, state, initial_slots, slots, query_start, out)),
        faults.buffer(q.device).data_ptr(),
        *(None, None, None, None, None),
        *(tokens, batch, key_heads, value_heads, key_dim, value_dim, state.shape[0]),
        *(q.stride(0), k.stride(0), v.stride(0), out.stride(0)),
        0,
    )
    return args, out


def _check_slots(
    initial_slots: torch.Tensor, slots: torch.Tensor, query_start: torch.Tensor, tokens: int, like: torch.Tensor
) -> int:
    check.tensor("initial_slots", initial_slots, torch.int32, (None,), like=like)
    batch = initial_slots.shape[0]
    check.tensor("slots", slots, torch.int32, (tokens,), like=like)
    check.tensor("query_start", query_start, torch.int32, (batch + 1,), like=like)
    return batch
