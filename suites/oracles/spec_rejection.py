"""One round of speculative decoding judged in fp64, written from the rule: no law objects, no shortcuts.

A draft x stays iff u q(x) < p(x), u in (0, 1). The first that does not is replaced by a draw from max(p - q, 0) / sum,
from p itself where that is 0 everywhere. If all stay, one token more is drawn from the last row. A draw takes the first
token, by id, at which the running sum passes its own uniform number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suites.oracles.arrays import F64


@dataclass(frozen=True, slots=True)
class Judged:
    """The tokens, and the distance of the nearest decision from being another one (as a probability)."""

    emitted: tuple[int, ...]
    margin: float


def draw(probs: F64, uniform: float) -> tuple[int, float]:
    """The token and how far the number is from the next token's stretch."""
    running = np.cumsum(probs)
    running /= running[-1]
    token = int(np.searchsorted(running, uniform, side="right"))
    below = running[token - 1] if token else 0.0
    return token, float(min(running[token] - uniform, uniform - below if below > 0 else np.inf))


def judge(
    target_rows: Sequence[F64],
    drafts: Sequence[int],
    draft_rows: Sequence[F64],
    accept: Sequence[float],
    recover: Sequence[float],
    bonus: float,
) -> Judged:
    """``target_rows`` K+1 and ``draft_rows`` K laws over the whole vocabulary; the numbers of each step."""
    margin = np.inf
    for step, token in enumerate(drafts):
        target, draft = target_rows[step], draft_rows[step]
        stays = accept[step] * draft[token] < target[token]
        if target[token] < draft[token]:
            margin = min(margin, abs(accept[step] * draft[token] - target[token]))
        if not stays:
            rest = np.maximum(target - draft, 0.0)
            replacement, distance = draw(rest if rest.sum() > 0 else target, recover[step])
            return Judged((*drafts[:step], replacement), min(margin, distance))
    last, distance = draw(target_rows[len(drafts)], bonus)
    return Judged((*drafts, last), min(margin, distance))
