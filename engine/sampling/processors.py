"""Changes to the logits that a request may ask for before its cutoffs, and log probabilities to report.

The order is fixed: bias, bans, penalties; then temperature and min-p; then top-k and top-p. All of it happens in place
and only at the ids that a rule names, except min-p, which looks at its whole row. In speculative decoding each row that
is verified has its own history: the caller passes the draft's prefix as part of that row's output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.rules import LogitsRules, TokenLogprob


@dataclass(frozen=True, slots=True)
class RowHistory:
    """The ids that a row's penalties are about: the prompt's, and those that were emitted (or drafted) after it."""

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


NO_HISTORY = RowHistory()


def process_inplace(logits: Tensor, rules: Sequence[LogitsRules | None], histories: Sequence[RowHistory]) -> None:
    """Bias, bans and penalties of each row of `logits` f32 [B, V], in place; None asks nothing of its row."""
    for row, asked, history in zip(logits, rules, histories, strict=True):
        if asked is not None:
            _bias(row, asked.logit_bias)
            _restrict(row, asked.allowed_ids, asked.banned_ids)
            _penalise(row, asked, history)


def min_p_inplace(logits: Tensor, min_p: Sequence[float], temperature: Sequence[float]) -> None:
    """Removes what is less likely than `min_p` times the likeliest at the row's temperature, in place.

    Decided on the fp32 quotients that the cutoffs see, in fp64: an entry stays while quotient >= maximum + log(min_p).
    A greedy row (temperature 0) and a row with `min_p` 0 are not touched. Waits for nothing on a GPU.
    """
    for row, share, t in zip(logits, min_p, temperature, strict=True):
        if share > 0 and t > 0:
            # A tensor on the row's device: by a host number, torch's CUDA division multiplies by the reciprocal.
            quotient = (row / torch.full((), t, dtype=torch.float32, device=row.device)).to(torch.float64)
            row.masked_fill_(quotient < quotient.max() + math.log(share), -torch.inf)


def logprobs(row: Tensor, token_id: int, top: int = 0) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
    """Log softmax of one row f32 [V] in fp64: of the token, and of the `top` likeliest (ties by lower id).

    Args:
        row: the logits as the head gave them; -inf is allowed and gives a log probability of -inf.
        token_id: the token that was emitted.
        top: how many of the likeliest to report as well.

    Raises:
        ValueError: an id outside the row, or more alternatives than it has.
    """
    width = row.shape[0]
    if not 0 <= token_id < width or not 0 <= top <= width:
        raise ValueError(f"token {token_id}, top {top}; allowed: an id of 0 to {width - 1}, up to {width} alternatives")
    values = torch.log_softmax(row.to(torch.float64), dim=0)
    ids = torch.sort(values, descending=True, stable=True).indices[:top].tolist() if top else []

    def described(token: int) -> TokenLogprob:
        return TokenLogprob(token, float(values[token]), int((values > values[token]).sum()))

    return described(token_id), tuple(described(token) for token in ids)


def _indices(ids: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.int64, device=row.device)


def _bias(row: Tensor, bias: Mapping[int, float]) -> None:
    if bias:
        row.index_add_(0, _indices(bias, row), torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device))


def _restrict(row: Tensor, allowed: frozenset[int] | None, banned: frozenset[int]) -> None:
    if allowed is not None:
        ids = _indices(sorted(allowed), row)
        stays = row[ids]
        row.fill_(-torch.inf)
        row[ids] = stays
    if banned:
        row[_indices(sorted(banned), row)] = -torch.inf


def _penalise(row: Tensor, asked: LogitsRules, history: RowHistory) -> None:
    if asked.repetition_penalty != 1 and (history.prompt or history.output):
        ids = _indices(sorted({*history.prompt, *history.output}), row)
        values = row[ids]
        row[ids] = torch.where(values > 0, values / asked.repetition_penalty, values * asked.repetition_penalty)
    if (asked.frequency_penalty != 0 or asked.presence_penalty != 0) and history.output:
        counts = Counter(history.output)
        ids = _indices(counts, row)
        times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[ids] = row[ids] - asked.frequency_penalty * times - asked.presence_penalty
