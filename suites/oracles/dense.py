"""Linear, head, embedding, RMSNorm and SwiGLU in fp64."""

from __future__ import annotations

import numpy as np

from suites.oracles.arrays import F64, Ints


def linear(x: F64, weight: F64, residual: F64 | None = None) -> F64:
    """``x [M, K] @ weight [N, K].T (+ residual [M, N])``."""
    out: F64 = x @ weight.T
    return out if residual is None else out + residual


def linear_magnitude(x: F64, weight_magnitude: F64, residual: F64 | None = None) -> F64:
    """``sum_k |x_mk| |w_nk| (+ |residual|)``: the quantity the forward error bound of a dot product multiplies."""
    out: F64 = np.abs(x) @ np.abs(weight_magnitude).T
    return out if residual is None else out + np.abs(residual)


def candidate_logits(hidden: F64, weight: F64, ids: Ints) -> F64:
    """Dot products of ``hidden [M, K]`` with the rows ``ids [M, C]`` of ``weight [V, K]`` -> ``[M, C]``."""
    out: F64 = np.einsum("mk,mck->mc", hidden, weight[ids])
    return out


def embedding(ids: Ints, weight: F64) -> F64:
    """Rows ``ids [T]`` of ``weight [V, H]``."""
    return weight[ids]


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    """``x * weight / sqrt(mean(x^2) + eps)`` over the last axis."""
    out: F64 = x * weight / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return out


def sigmoid(x: F64) -> F64:
    """``1 / (1 + exp(-x))`` without overflow on either side."""
    small = np.exp(-np.abs(x))
    out: F64 = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return out


def silu(x: F64) -> F64:
    """``x * sigmoid(x)``."""
    return x * sigmoid(x)


def silu_mul(gate_up: F64) -> F64:
    """SwiGLU: ``silu(gate) * up`` of ``[M, 2I]`` with the gate in the first half -> ``[M, I]``."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate|up needs an even width, got {gate_up.shape[-1]}")
    gate, up = np.split(gate_up, 2, axis=-1)
    return silu(gate) * up
