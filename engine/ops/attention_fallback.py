"""Attention in plain torch, for what the kernels do not serve: only ever run where a decision says so aloud.

It knows ALiBi, a soft cap and sinks, any head size, strides and device, and FP8 caches by decoding them. It reads
lengths on the host, so it cannot be captured.
"""

from __future__ import annotations

import torch

from engine.ops.attention_call import AttentionCall
from engine.ops.reference import gather_pages, visible


def attend(call: AttentionCall, *, causal: bool, window: tuple[int, int]) -> torch.Tensor:
    """Softmax(scale q k + bias) v for every row, float32 inside, in the dtype of ``q``.

    A sink is one more key with its own score and a zero value: it takes probability and gives nothing.
    """
    result = torch.zeros(call.q.shape, dtype=torch.float32, device=call.q.device)
    first = 0
    for sequence, (rows, length) in enumerate(zip(call.query_lens, call.lengths, strict=True)):
        last = first + rows
        if rows and length:
            result[first:last] = _sequence(call, sequence, first, last, length, causal, window)
        first = last
    out = call.output()
    return out.copy_(result.to(call.q.dtype))


def _sequence(
    call: AttentionCall, sequence: int, first: int, last: int, length: int, causal: bool, window: tuple[int, int]
) -> torch.Tensor:
    table = call.block_table[sequence]
    keys = gather_pages(call.k_cache, table, length) * call.k_scale
    values = gather_pages(call.v_cache, table, length) * call.v_scale
    keys, values = (tensor.repeat_interleave(call.group, dim=1) for tensor in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", call.q[first:last].float(), keys) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.alibi_slopes is not None:
        position = torch.arange(length - (last - first), length, device=scores.device)
        distance = torch.arange(length, device=scores.device)[None, :] - position[:, None]
        scores = scores + call.alibi_slopes.float()[:, None, None] * distance
    seen = visible(length, last - first, causal=causal, window=window).to(scores.device)
    scores = scores.masked_fill(~seen, float("-inf"))
    if call.sinks is not None:
        sink = call.sinks.float()[:, None, None].expand(-1, last - first, 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, values)
