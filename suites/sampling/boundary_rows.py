"""The single-row boundary cases: one row, its settings, and the ids that must stay, each worked out by hand.

Numbers are those of the boundary list in the scope's documentation; names say what is at the boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

WIDTH = 32768
FLOOR = -20.0
INF = np.inf


@dataclass(frozen=True, slots=True, eq=False)
class BoundaryRow:
    """One case. ``keep`` are the ids that survive and are finite."""

    number: int
    name: str
    row: F32
    keep: frozenset[int]
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0

    @property
    def id(self) -> str:
        return f"{self.number:02}-{self.name}"


def _row(values: Iterable[float]) -> F32:
    return np.array(list(values), dtype=np.float32)


def _floored(*groups: tuple[int, float], width: int = WIDTH) -> F32:
    """Groups of equal values at the lowest ids, then a floor."""
    row = np.full(width, FLOOR, dtype=np.float32)
    start = 0
    for count, value in groups:
        row[start : start + count] = value
        start += count
    return row


def _ids(*parts: int | range) -> frozenset[int]:
    return frozenset(i for part in parts for i in ([part] if isinstance(part, int) else part))


_TWO_MAXIMA = _row([3, 1, 3, 0])
_TIE_AT_K = _row([4, 3, 3, 3, 1])
_TWO_GROUPS = _row([2, 2, 2, 1, 1, 1, 1, 0])
_EIGHT = _row([1] * 8)
_EQUAL = np.ones(WIDTH, dtype=np.float32)
_MANY_THEN_FEW = _floored((18, 2.0), (6, 1.0))
_FEW_THEN_MANY = _floored((2, 2.0), (18, 1.0))

FIRST_TWENTY = (
    BoundaryRow(1, "distinct", _row(range(5)), _ids(3, 4), top_k=2),
    BoundaryRow(2, "unique maximum", _row([0.5, 7, -1, 6.9]), _ids(1), top_k=1),
    BoundaryRow(3, "two maxima at k", _TWO_MAXIMA, _ids(0, 2), top_k=1),
    BoundaryRow(4, "two maxima, half the mass", _TWO_MAXIMA, _ids(2), top_k=1, top_p=0.5),
    BoundaryRow(5, "tie crosses k", _TIE_AT_K, _ids(range(4)), top_k=2),
    BoundaryRow(6, "tie crosses k, nucleus holds it", _TIE_AT_K, _ids(range(4)), top_k=2, top_p=0.85),
    BoundaryRow(7, "tie crosses k, nucleus drops one", _TIE_AT_K, _ids(0, 2, 3), top_k=2, top_p=0.7),
    BoundaryRow(8, "tie crosses k, nucleus keeps one", _TIE_AT_K, _ids(0, 3), top_k=2, top_p=0.5),
    BoundaryRow(9, "tie inside the nucleus", _TWO_GROUPS, _ids(0, 1, 2), top_k=5, top_p=0.6),
    BoundaryRow(10, "second tie split", _TWO_GROUPS, _ids(0, 1, 2, 5, 6), top_k=5, top_p=0.8),
    BoundaryRow(11, "first tie split", _TWO_GROUPS, _ids(2), top_k=5, top_p=0.2),
    BoundaryRow(12, "k meets the second tie", _TWO_GROUPS, _ids(range(7)), top_k=5),
    BoundaryRow(13, "all equal, top-k only", _EQUAL, _ids(range(WIDTH)), top_k=20),
    BoundaryRow(14, "all equal, p .95", _EQUAL, _ids(range(1638, WIDTH)), top_k=20, top_p=0.95),
    BoundaryRow(15, "all equal, p .6", _EQUAL, _ids(range(13107, WIDTH)), top_k=20, top_p=0.6),
    BoundaryRow(16, "equality removes", _EIGHT, _ids(7), top_p=0.125),
    BoundaryRow(17, "just above equality", _EIGHT, _ids(6, 7), top_p=0.13),
    BoundaryRow(18, "tiny p keeps one", _EIGHT, _ids(7), top_p=1e-9),
    BoundaryRow(19, "many then few, p 1", _MANY_THEN_FEW, _ids(range(24)), top_k=20),
    BoundaryRow(19, "many then few, p .95", _MANY_THEN_FEW, _ids(range(18), range(20, 24)), top_k=20, top_p=0.95),
    BoundaryRow(19, "many then few, p .6", _MANY_THEN_FEW, _ids(range(5, 18)), top_k=20, top_p=0.6),
    BoundaryRow(20, "few then many, p 1", _FEW_THEN_MANY, _ids(range(20)), top_k=20),
    BoundaryRow(20, "few then many, p .95", _FEW_THEN_MANY, _ids(0, 1, range(3, 20)), top_k=20, top_p=0.95),
    BoundaryRow(20, "few then many, p .6", _FEW_THEN_MANY, _ids(0, 1, range(11, 20)), top_k=20, top_p=0.6),
)


def _scattered(count: int, width: int, seed: int) -> I64:
    return np.sort(np.random.default_rng(seed).permutation(width)[:count])


def _at(ids: I64, value: float, width: int, floor: float = FLOOR) -> F32:
    row = np.full(width, floor, dtype=np.float32)
    row[ids] = value
    return row


_NEAR_TIES = _row([20.001, 20.004, 20.006, 18])
_BF16_TIES = _row([10.02, 10.03, 10.05, 9])
_TAIL_TIES = _at(np.arange(WIDTH - 160, WIDTH), 3.0, WIDTH)
_SCATTER = _scattered(24, WIDTH, 37)
_MANY_SCATTERED = _scattered(5000, WIDTH, 36)

REST = (
    BoundaryRow(21, "nothing asked", _row([5, -0.0, 4, -INF, 3]), _ids(0, 1, 2, 4), top_k=5),
    BoundaryRow(22, "k is V, p .7", _row([5, 4, 3, 2]), _ids(0, 1), top_k=4, top_p=0.7),
    BoundaryRow(23, "k above V", _row([1, 3, 2]), _ids(0, 1, 2), top_k=10**6),
    BoundaryRow(23, "k 0", _row([1, 3, 2]), _ids(0, 1, 2), top_k=0),
    BoundaryRow(23, "k -1", _row([1, 3, 2]), _ids(0, 1, 2), top_k=-1),
    BoundaryRow(24, "p 1 keeps what weighs nothing", _row([0, -30, -110, -120]), _ids(range(4)), top_p=1.0),
    BoundaryRow(26, "masked vocabulary", _row([-INF, 2, -INF, 2, 1]), _ids(1, 3, 4), top_k=3, top_p=0.9),
    BoundaryRow(27, "fewer finite than k", _row([-INF, -INF, 5, -INF]), _ids(2), top_k=3),
    BoundaryRow(30, "signed zeros tie", _row([0.0, -0.0, -1, -0.0]), _ids(0, 1, 3), top_k=2),
    BoundaryRow(30, "signed zeros split", _row([0.0, -0.0, -1, -0.0]), _ids(1, 3), top_k=2, top_p=0.5),
    BoundaryRow(31, "near ties in fp32", _NEAR_TIES, _ids(2), top_k=1),
    BoundaryRow(31, "near ties through fp16", _NEAR_TIES.astype(np.float16).astype(np.float32), _ids(0, 1, 2), top_k=1),
    BoundaryRow(32, "near ties in fp32", _BF16_TIES, _ids(1, 2), top_k=2),
    BoundaryRow(32, "near ties through bf16", _row([10, 10, 10.0625, 9]), _ids(0, 1, 2), top_k=2),
    BoundaryRow(33, "hugely negative", _row([-1e4, -10001, -10002]), _ids(0, 1), top_k=2, top_p=0.9),
    BoundaryRow(34, "one dominates", _row([50, 0, 0, 0]), _ids(0), top_k=3, top_p=0.9),
    *(
        BoundaryRow(35, f"ties at the end, k {k}", _TAIL_TIES, _ids(range(WIDTH - 160, WIDTH)), top_k=k)
        for k in (1, 20, 64, 127)
    ),
    BoundaryRow(36, "129 ties at k", _floored((129, 1.0)), _ids(range(129)), top_k=20),
    BoundaryRow(36, "5000 ties at k", _at(_MANY_SCATTERED, 1.0, WIDTH), _ids(*_MANY_SCATTERED.tolist()), top_k=20),
    BoundaryRow(
        36,
        "5000 ties, nucleus splits them",
        _at(_MANY_SCATTERED, 1.0, WIDTH),
        _ids(*_MANY_SCATTERED[2500:].tolist()),
        top_k=20,
        top_p=0.5,
    ),
    BoundaryRow(37, "scattered ties", _at(_SCATTER, 1.0, WIDTH), _ids(*_SCATTER.tolist()), top_k=20),
    BoundaryRow(
        37, "scattered ties split", _at(_SCATTER, 1.0, WIDTH), _ids(*_SCATTER[12:].tolist()), top_k=20, top_p=0.5
    ),
)
