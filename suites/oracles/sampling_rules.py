"""What a request's rules make of a row of logits, by definition: one token at a time, in fp64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def ruled(
    row: F32,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    bias: Mapping[int, float] | None = None,
    allowed: frozenset[int] | None = None,
    banned: frozenset[int] = frozenset(),
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    """Bias, bans, then penalties: repetition over prompt and output, frequency and presence over the output."""
    result = []
    for token, logit in enumerate(row.tolist()):
        value = logit + (bias or {}).get(token, 0.0)
        if token in banned or (allowed is not None and token not in allowed):
            value = -math.inf
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        times = output.count(token)
        value -= frequency * times + (presence if times else 0.0)
        result.append(value)
    return result


def min_p_keeps(row: F32, min_p: float, temperature: float) -> frozenset[int]:
    """Ids whose probability is at least ``min_p`` of the likeliest's, on the fp32 quotients by temperature."""
    quotient = (row / np.float32(temperature)).astype(np.float64)
    return frozenset(np.flatnonzero(np.exp(quotient - quotient.max()) >= min_p).tolist())


def log_softmax(row: F32) -> list[float]:
    """Log probabilities; sums in extended precision by math.fsum."""
    top = max(row.tolist())
    total = math.log(math.fsum(math.exp(value - top) for value in row.tolist()))
    return [value - top - total for value in row.tolist()]
