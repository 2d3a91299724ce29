"""The tokens of several ranks beside those of one: equal, or the first other one explained by a gap within rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.config import EngineConfig
from engine.parallel.launch import Device
from suites.recording import Record
from suites.tp_admission import nccl_jobs
from suites.tp_admission.on_ranks import on_ranks

Gap = Callable[[float], float]
"""From the largest logit to the gap between two that rounding may close."""


def same_tokens(
    make: Callable[[int], EngineConfig],
    size: int,
    prompt: list[int],
    count: int,
    gap: Gap,
    record: Record,
    device: Device,
) -> None:
    """``make(ranks)`` on one rank and on ``size``: ``count`` tokens after ``prompt``, and all logits of that text.

    Logits may differ by what rounding explains, and must differ: equal ones would be a copy, not sums over ranks.
    """
    (one,) = on_ranks(1, nccl_jobs.text_answer, make(1), prompt, count, device=device)
    text = (*prompt, *one.token_ids)
    many, *_ = on_ranks(size, nccl_jobs.text_answer, make(size), prompt, count, text, device=device)
    first = next((i for i, (a, b) in enumerate(zip(one.token_ids, many.token_ids, strict=True)) if a != b), count)
    error = float(np.abs(one.logits - many.logits).max())
    allowed = gap(float(np.abs(one.logits).max()))
    record.metric("leading tokens alike", first, "tokens", better="higher", exact=False)
    record.metric("largest logit difference from one rank", error, "logit", better="lower", exact=False)
    assert 0 < error < allowed, f"logits differ by {error:.4f}; allowed: below {allowed:.4f}, and no copy of its sums"
    if first < count:
        row = one.logits[len(prompt) - 1 + first]
        lead = float(row[one.token_ids[first]] - row[many.token_ids[first]])
        assert lead < allowed, f"token {first}: one rank is sure of it by {lead:.4f}; what may close is {allowed:.4f}"
