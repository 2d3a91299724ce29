"""Gated DeltaNet in fp64: the plain recurrence, token after token."""

from __future__ import annotations

import numpy as np

from suites.oracles.arrays import F64
from suites.oracles.dense import sigmoid, silu

L2_EPS = 1e-6
SOFTPLUS_LINEAR_ABOVE = 20.0


def causal_conv(x: F64, weight: F64, state: F64) -> tuple[F64, F64]:
    """Depthwise causal convolution and SiLU of ``x [T, C]`` with ``weight [C, W]``, after the ``W - 1`` rows ``state``.

    Returns ``[T, C]`` and the state ``[T, W - 1, C]`` after each token (a speculative round keeps one per position).
    """
    width = weight.shape[1]
    rows = np.concatenate([state, x])
    out = np.zeros_like(x)
    states = np.zeros((x.shape[0], width - 1, x.shape[1]))
    for token in range(x.shape[0]):
        out[token] = silu(np.einsum("wc,cw->c", rows[token : token + width], weight))
        states[token] = rows[token + 1 : token + width]
    return out, states


def l2_norm(x: F64) -> F64:
    """``x / sqrt(sum x^2 + 1e-6)`` over the last axis: the epsilon is inside the root."""
    out: F64 = x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + L2_EPS)
    return out


def softplus(x: F64) -> F64:
    """``log(1 + exp(x))``, x itself above 20 as the model defines it."""
    out: F64 = np.where(x > SOFTPLUS_LINEAR_ABOVE, x, np.log1p(np.exp(np.minimum(x, SOFTPLUS_LINEAR_ABOVE))))
    return out


def gates(a: F64, b: F64, a_log: F64, dt_bias: F64) -> tuple[F64, F64]:
    """Log decay g = -exp(A_log) softplus(a + dt_bias) (<= 0) and beta = sigmoid(b); ``a, b [T, Hv]``."""
    decay: F64 = -np.exp(a_log) * softplus(a + dt_bias)
    return decay, sigmoid(b)


def recurrence(q: F64, k: F64, v: F64, log_decay: F64, beta: F64, state: F64) -> tuple[F64, F64]:
    """The delta rule over ``q, k [T, Hk, dk]`` (not yet normalised), ``v [T, Hv, dv]``, gates ``[T, Hv]``.

    ``state [Hv, dv, dk]``; value head j uses key head ``j // (Hv/Hk)``. Order: decay the state, read with k, write the
    correction, read with q.
    Returns outputs ``[T, Hv, dv]`` and the state after each token ``[T, Hv, dv, dk]``.
    """
    ratio = v.shape[1] // k.shape[1]
    queries = np.repeat(l2_norm(q) * q.shape[-1] ** -0.5, ratio, axis=1)
    keys = np.repeat(l2_norm(k), ratio, axis=1)
    out = np.zeros_like(v)
    states = np.zeros((v.shape[0], *state.shape))
    current = state.copy()
    for token in range(v.shape[0]):
        current *= np.exp(log_decay[token])[:, None, None]
        read = np.einsum("hvk,hk->hv", current, keys[token])
        delta = beta[token][:, None] * (v[token] - read)
        current += delta[:, :, None] * keys[token][:, None, :]
        out[token] = np.einsum("hvk,hk->hv", current, queries[token])
        states[token] = current
    return out, states


def gated_rms_norm(x: F64, z: F64, weight: F64, eps: float) -> F64:
    """RMSNorm over the head's ``dv`` with its weight, and only then times SiLU(z)."""
    normed: F64 = x * weight / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return normed * silu(z)
