"""Gated DeltaNet in plain torch: what each op means, token after token, float32 inside.

Each row is computed by itself: torch rounds an element of a long tensor otherwise than the same element of a short one
(vector lanes against the scalar rest), and a row's bits must not depend on its neighbours.

State slots, the same for every op: a sequence starts from slot ``initial_slots[b]`` and leaves the state after its
token t in slot ``slots[t]`` (-1: not kept), so a speculative round keeps one state for each drafted position. A fresh
sequence starts from a slot that holds zeros; -1 in ``initial_slots`` is a padded sequence, whose rows are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as torch_functional

L2_EPS = 1e-6
CHUNK = 64
NOT_KEPT = -1
PADDED = -1


def gdn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    state: torch.Tensor,
    initial_slots: torch.Tensor,
    slots: torch.Tensor,
    query_start: torch.Tensor,
) -> torch.Tensor:
    """Depthwise causal convolution of ``x`` [T, C] with ``weight`` [C, W], then SiLU.

    ``state`` [S, W - 1, C] holds the rows before the next token, oldest first.
    """
    out = torch.zeros_like(x)
    width = weight.shape[1]
    for start, end, initial in _sequences(initial_slots, query_start):
        rows = torch.cat((state[initial], x[start:end]))
        for token in range(start, end):
            window = rows[token - start : token - start + width]
            out[token] = torch_functional.silu((window * weight.T).sum(dim=0))
            if slots[token] != NOT_KEPT:
                state[slots[token]] = window[1:]
    return out


def gdn_gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay -exp(a_log) softplus(a + dt_bias) (<= 0) and beta = sigmoid(b), [T, Hv] each."""
    if a.shape[0] == 0:
        return torch.empty_like(a), torch.empty_like(b)
    decays = [-a_log.exp() * torch_functional.softplus(row + dt_bias, threshold=20) for row in a]
    return torch.stack(decays), torch.stack([row.sigmoid() for row in b])


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
) -> torch.Tensor:
    """The delta rule: decay the state, read it with k, write the correction, read it with q -> [T, Hv, dv].

    ``q``, ``k`` [T, Hk, dk] are L2-normed here, q then times dk**-0.5; ``v`` [T, Hv, dv]; value head j uses key head
    j // (Hv / Hk); ``state`` [S, Hv, dv, dk].
    """
    ratio = v.shape[1] // k.shape[1]
    out = torch.zeros_like(v)
    for start, end, initial in _sequences(initial_slots, query_start):
        current = state[initial].clone()
        for token in range(start, end):
            query = (_l2_norm(q[token]) * q.shape[-1] ** -0.5).repeat_interleave(ratio, dim=0)
            key = _l2_norm(k[token]).repeat_interleave(ratio, dim=0)
            current *= log_decay[token].exp()[:, None, None]
            correction = beta[token, :, None] * (v[token] - (current * key[:, None, :]).sum(dim=-1))
            current += correction[:, :, None] * key[:, None, :]
            out[token] = (current * query[:, None, :]).sum(dim=-1)
            if slots[token] != NOT_KEPT:
                state[slots[token]] = current
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
) -> torch.Tensor:
    """`gdn_recurrent` in chunks of 64 tokens by matrix products: the same answer up to rounding.

    Only the last token of a sequence may name a slot.
    """
    ratio = v.shape[1] // k.shape[1]
    out = torch.zeros_like(v)
    for start, end, initial in _sequences(initial_slots, query_start):
        current = state[initial].clone()
        for first in range(start, end, CHUNK):
            rows = slice(first, min(first + CHUNK, end))
            queries = (_l2_norm(q[rows]) * q.shape[-1] ** -0.5).repeat_interleave(ratio, dim=1).transpose(0, 1)
            keys = _l2_norm(k[rows]).repeat_interleave(ratio, dim=1).transpose(0, 1)
            gates = log_decay[rows].T, beta[rows].T
            result, current = _chunk(queries, keys, v[rows].transpose(0, 1), *gates, current)
            out[rows] = result.transpose(0, 1)
        if end > start and slots[end - 1] != NOT_KEPT:
            state[slots[end - 1]] = current
    return out


def _chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, heads first: q, k [H, n, dk], v [H, n, dv], gates [H, n], state [H, dv, dk] -> output, new state."""
    total = log_decay.cumsum(dim=-1)
    # Only differences of later and earlier sums are exponents: none is positive.
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    mixing = (beta.unsqueeze(-1) * (k @ k.mT) * between).tril(-1)
    unit = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
    inputs = torch.cat((k * (beta * total.exp()).unsqueeze(-1), v * beta.unsqueeze(-1)), dim=-1)
    solved = torch.linalg.solve_triangular(unit + mixing, inputs, upper=False, unitriangular=True)
    fresh = solved[..., k.shape[-1] :] - solved[..., : k.shape[-1]] @ state.mT
    out = total.exp().unsqueeze(-1) * (q @ state.mT) + ((q @ k.mT) * between) @ fresh
    left = (total[..., -1:] - total).exp().unsqueeze(-1)
    return out, total[..., -1, None, None].exp() * state + fresh.mT @ (k * left)


def gdn_gated_rms_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of ``x`` [T, Hv, dv] over a head with ``weight`` [dv], then times silu(``z``)."""
    if x.shape[0] == 0:
        return torch.empty_like(x)
    scales = [torch.rsqrt(row.pow(2).mean(dim=-1, keepdim=True) + eps) for row in x]
    gates = [torch_functional.silu(row.contiguous()) for row in z]
    return x * torch.stack(scales) * weight * torch.stack(gates)


def _l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).sum(dim=-1, keepdim=True) + L2_EPS)


def _sequences(initial_slots: torch.Tensor, query_start: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """First row, end row and initial slot of each sequence that is not padding."""
    edges = query_start.tolist()
    for index, initial in enumerate(initial_slots.tolist()):
        if initial != PADDED:
            yield edges[index], edges[index + 1], initial
