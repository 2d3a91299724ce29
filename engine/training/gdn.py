"""Gated DeltaNet for training: whole texts, chunk by chunk, every sequence of a batch from a zero state.

The same arithmetic as `engine.ops.gdn_reference.gdn_chunk`, laid out for a batch of equally long sequences and for
gradients. Lengths are multiples of the chunk; padding stands after the text, where causality makes it harmless.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as torch_functional

from engine.ops.gdn_reference import L2_EPS

CHUNK = 32


def causal_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Depthwise over ``x`` [B, T, C] with ``weight`` [C, W], then SiLU."""
    width = weight.shape[1]
    padded = torch_functional.pad(x, (0, 0, width - 1, 0))
    length = x.shape[1]
    taps = weight.T.to(x.dtype)
    mixed = padded[:, :length] * taps[0]
    for tap in range(1, width):
        mixed = mixed + padded[:, tap : tap + length] * taps[tap]
    return torch_functional.silu(mixed)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Float32, written out: the fused kernels' gradients are slow for many short rows."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    """Rows over their length, as the engine's op does it."""
    return x * torch.rsqrt(x.pow(2).sum(dim=-1, keepdim=True) + L2_EPS)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for the part of A [N, C, C] strictly below its diagonal, C a power of two.

    Blocks of s rows are inverted already; two of them, with what lies below the first, make one of 2s. Products of
    matrices alone: a batched triangular solve of such small systems is several times slower on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, below: torch.Tensor) -> torch.Tensor:
        """See the class."""
        size = below.shape[-1]
        index = torch.arange(size, device=below.device)
        inverse = torch.eye(size, device=below.device, dtype=below.dtype).expand_as(below)
        width = 1
        while width < size:
            same = index[:, None] // (2 * width) == index // (2 * width)
            joins = same & (index[:, None] // width % 2 == 1) & (index // width % 2 == 0)
            part = below * joins
            inverse = inverse - part if width == 1 else torch.baddbmm(inverse, inverse, part @ inverse, alpha=-1)
            width *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """-T' G T', below the diagonal."""
        (inverse,) = ctx.saved_tensors
        gradient: torch.Tensor = -(inverse.mT @ grads[0] @ inverse.mT).tril(-1)
        return gradient


def unit_lower_inverse(below: torch.Tensor) -> torch.Tensor:
    """See `UnitLowerInverse`."""
    out: torch.Tensor = UnitLowerInverse.apply(below)  # type: ignore[no-untyped-call]
    return out


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """q, k [B, T, Hk, dk] (not yet normed), v [B, T, Hv, dv], gates float32 [B, T, Hv] -> float32 [B, T, Hv, dv]."""
    batch, length, key_heads, key_dim = q.shape
    value_heads, value_dim = v.shape[2:]
    if length % CHUNK:
        raise ValueError(f"{length} tokens; allowed: multiples of {CHUNK}")
    chunks, ratio = length // CHUNK, value_heads // key_heads
    q, k, v = (
        x.float().view(batch, chunks, CHUNK, x.shape[2], x.shape[3]).permute(1, 0, 3, 2, 4) for x in (q, k, v)
    )  # [n, B, H, C, d]
    q, k = l2_norm(q) * key_dim**-0.5, l2_norm(k)
    log_decay, beta = (x.view(batch, chunks, CHUNK, value_heads).permute(1, 0, 3, 2) for x in (log_decay, beta))
    local, keys, values = _within_chunks(q, k, v, log_decay, beta, ratio)
    total = log_decay.cumsum(dim=-1)
    q, k = q.repeat_interleave(ratio, dim=2), k.repeat_interleave(ratio, dim=2)
    from_state = (q * total.exp().unsqueeze(-1)).flatten(1, 2)
    to_state = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).flatten(1, 2).mT
    kept = total[..., -1].exp().flatten(1, 2)[..., None, None]
    state = q.new_zeros(batch * value_heads, key_dim, value_dim)
    outputs = []
    for index in range(chunks):
        fresh = torch.baddbmm(values[index], keys[index], state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(local[index], fresh), from_state[index], state))
        state = torch.baddbmm(state * kept[index], to_state[index], fresh)
    out = torch.stack(outputs).view(chunks, batch, value_heads, CHUNK, value_dim)
    return out.permute(1, 0, 3, 2, 4).reshape(batch, length, value_heads, value_dim)


def _within_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, ratio: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What needs no state: attention inside a chunk [n, B Hv, C, C], and the solved keys and values."""
    total = log_decay.cumsum(dim=-1)
    # Only differences of later and earlier sums are exponents: none is positive.
    above = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()

    def spread(x: torch.Tensor) -> torch.Tensor:
        """A key head's square for each of its value heads."""
        return x.repeat_interleave(ratio, dim=2)

    mixing = spread(k @ k.mT) * between * beta.unsqueeze(-1)
    local = spread(q @ k.mT) * between
    weighted = (spread(k) * (beta * total.exp()).unsqueeze(-1), v * beta.unsqueeze(-1))
    inverse = unit_lower_inverse(mixing.flatten(0, 2)).view(mixing.shape)
    keys, values = torch.split(inverse @ torch.cat(weighted, dim=-1), [k.shape[-1], v.shape[-1]], dim=-1)
    return local.flatten(1, 2), keys.flatten(1, 2), values.flatten(1, 2)
