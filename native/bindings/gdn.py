"""Gated DeltaNet: convolution with state, gates, the recurrence token by token or in chunks, gated norm.

State slots, the same for every op: a sequence starts from slot ``initial_slots[b]`` and leaves its state after token t
in slot ``slots[t]``. See `engine.ops.gdn`.
"""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call

TAPS = 4


class _Slots(ctypes.Structure):
    """GdnSlots of native/cpu/gdn_slots.h, field for field."""

    _fields_ = (
        ("initial_slots", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("states", ctypes.c_int64),
    )


class GdnConv(Args):
    OP = "gdn_conv_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("slots", _Slots),
    )


class GdnGates(Args):
    OP = "gdn_gates_cpu"
    CAPABILITY = 1
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "a_log", "dt_bias", "log_decay", "beta")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "a_stride", "b_stride")),
    )


class _Gdn(Args):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "log_decay", "beta", "state", "out")),
        *((name, ctypes.c_int64) for name in ("key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride", "v_stride", "out_stride")),
        ("slots", _Slots),
    )


class GdnRecurrent(_Gdn):
    OP = "gdn_recurrent_cpu"
    CAPABILITY = 1


class GdnChunk(_Gdn):
    OP = "gdn_chunk_cpu"
    CAPABILITY = 1


class GdnGatedRmsNorm(Args):
    OP = "gdn_gated_rms_norm_cpu"
    CAPABILITY = 1
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "z", "weight", "out")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "dim", "x_stride", "z_stride", "out_stride")),
        ("eps", ctypes.c_double),
    )


def bind_gdn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.gdn.gdn_conv`."""
    check.tensor("x", x, torch.float32, (None, None), contiguous=False)
    tokens, channels = x.shape
    check.tensor("weight", weight, torch.float32, (channels, TAPS))
    check.tensor("state", state, torch.float32, (None, TAPS - 1, channels))
    places = _slots(initial_slots, slots, query_start, tokens, state.shape[0])
    out = check.output("out", out, torch.float32, (tokens, channels))
    args = GdnConv(*(t.data_ptr() for t in (x, weight, state, out)), channels, x.stride(0), out.stride(0), places)
    return Call(args, out, (x, weight, state, initial_slots, slots, query_start))


def bind_gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    log_decay: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
) -> tuple[Call, torch.Tensor]:
    """See `engine.ops.gdn.gdn_gates`. The call's ``out`` is the log decay; the beta it writes comes beside it."""
    check.tensor("a", a, torch.float32, (None, None), contiguous=False)
    tokens, heads = a.shape
    check.tensor("b", b, torch.float32, (tokens, heads), contiguous=False)
    check.tensor("a_log", a_log, torch.float32, (heads,))
    check.tensor("dt_bias", dt_bias, torch.float32, (heads,))
    log_decay = check.output("log_decay", log_decay, torch.float32, (tokens, heads), contiguous=True)
    beta = check.output("beta", beta, torch.float32, (tokens, heads), contiguous=True)
    pointers = (t.data_ptr() for t in (a, b, a_log, dt_bias, log_decay, beta))
    args = GdnGates(*pointers, tokens, heads, a.stride(0), b.stride(0))
    return Call(args, log_decay, (a, b, a_log, dt_bias, beta)), beta


def bind_gdn_recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.gdn.gdn_recurrent`."""
    return _bind(GdnRecurrent, q, k, v, log_decay, beta, state, (initial_slots, slots, query_start), out)


def bind_gdn_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
    out: torch.Tensor | None = None,
) -> Call:
    """See `engine.ops.gdn.gdn_chunk`."""
    return _bind(GdnChunk, q, k, v, log_decay, beta, state, (initial_slots, slots, query_start), out)


def bind_gdn_gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> Call:
    """See `engine.ops.gdn.gdn_gated_rms_norm`."""
    check.tensor("x", x, torch.float32, (None, None, None), contiguous=False)
    tokens, heads, dim = x.shape
    if dim == 0:
        raise ValueError(f"x: saw shape {tuple(x.shape)}, need heads of at least one dimension")
    check.tensor("z", z, torch.float32, (tokens, heads, dim), contiguous=False)
    check.tensor("weight", weight, torch.float32, (dim,))
    check.positive("eps", eps)
    out = check.output("out", out, torch.float32, (tokens, heads, dim))
    for name, rows in (("x", x), ("z", z), ("out", out)):
        check.heads_together(name, rows)
    pointers = (t.data_ptr() for t in (x, z, weight, out))
    args = GdnGatedRmsNorm(*pointers, tokens, heads, dim, x.stride(0), z.stride(0), out.stride(0), eps)
    return Call(args, out, (x, z, weight))


def _bind(
    record: type[_Gdn],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor | None,
) -> Call:
    check.tensor("q", q, torch.float32, (None, None, None), contiguous=False)
    tokens, key_heads, key_dim = q.shape
    check.tensor("k", k, torch.float32, (tokens, key_heads, key_dim), contiguous=False)
    check.tensor("v", v, torch.float32, (tokens, None, None), contiguous=False)
    value_heads, value_dim = v.shape[1:]
    if key_dim == 0 or value_dim == 0:
        raise ValueError(f"q, v: saw head dimensions {key_dim} and {value_dim}, need at least 1")
    if key_heads == 0 or value_heads == 0 or value_heads % key_heads:
        raise ValueError(f"v: saw {value_heads} value heads over {key_heads} key heads, need a positive multiple")
    check.tensor("log_decay", log_decay, torch.float32, (tokens, value_heads))
    check.tensor("beta", beta, torch.float32, (tokens, value_heads))
    check.tensor("state", state, torch.float32, (None, value_heads, value_dim, key_dim))
    slots = _slots(*places, tokens, state.shape[0])
    out = check.output("out", out, torch.float32, (tokens, value_heads, value_dim))
    for name, rows in (("q", q), ("k", k), ("v", v), ("out", out)):
        check.heads_together(name, rows)
    args = record(
        *(t.data_ptr() for t in (q, k, v, log_decay, beta, state, out)),
        *(key_heads, value_heads, key_dim, value_dim),
        *(q.stride(0), k.stride(0), v.stride(0), out.stride(0)),
        slots,
    )
    return Call(args, out, (q, k, v, log_decay, beta, state, *places))


def _slots(
    initial_slots: torch.Tensor, slots: torch.Tensor, query_start: torch.Tensor, tokens: int, states: int
) -> _Slots:
    check.tensor("initial_slots", initial_slots, torch.int32, (None,))
    batch = initial_slots.shape[0]
    check.tensor("slots", slots, torch.int32, (tokens,))
    check.tensor("query_start", query_start, torch.int32, (batch + 1,))
    pointers = (t.data_ptr() for t in (initial_slots, slots, query_start))
    return _Slots(*pointers, tokens, batch, states)
