"""What ranks together should give, in NumPy: sums in rank order, columns side by side, the best candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def ordered_sum(parts: npt.NDArray[Any], hidden: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``((parts[0] + parts[1]) + ...) + hidden`` in float32, element by element, rounded once to hidden's dtype."""
    out = np.empty_like(hidden)
    for at in np.ndindex(*hidden.shape):
        total = np.float32(parts[(0, *at)])
        for rank in range(1, len(parts)):
            total = np.float32(total + np.float32(parts[(rank, *at)]))
        out[at] = np.float32(total + np.float32(hidden[at]))
    return out


def best_candidates(logits: npt.NDArray[Any], count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], list[bool]]:
    """The ``count`` best tokens of each row [M, V] by value, then by id; and whether the next ties with the last."""
    values, ids, ties = [], [], []
    for row in logits:
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        values.append([row[token] for token in order[:count]])
        ids.append(order[:count])
        ties.append(bool(row[order[count]] == row[order[count - 1]]))
    return np.array(values, logits.dtype), np.array(ids, np.int64), ties
