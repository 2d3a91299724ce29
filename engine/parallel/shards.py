"""Which rows of a fused weight a rank owns. Pure: integers in, ranges out. No torch.

A fused projection is several sections laid one after the other (q, k, v, z, b, a; or gate, up; or the rows of a
convolution). A rank owns its part of *each section*; one contiguous piece of the fused rows would give rank 0 all of q
and part of k. The one exception is a checkpoint that interleaves its sections per head group: there the contiguous
piece is right, because every group already holds one rank's parts side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layout(StrEnum):
    """How a checkpoint stores fused rows: section after section, or one k-head group after the other."""

    SECTIONS = "sections"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Rows:
    """Half-open range of rows ``[start, stop)`` of the unsharded weight."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """Ranges of one axis of a stored tensor, laid one after the other, and ``zeros`` after them."""

    axis: int
    ranges: tuple[Rows, ...]
    zeros: int = 0


def shard_sections(sections: tuple[int, ...], tp: int, rank: int) -> tuple[Rows, ...]:
    """Rows of each section that ``rank`` of ``tp`` owns, in the order in which the rank stores them.

    Raises ``ValueError`` where TP does not divide a section or the rank is out of range.
    """
    _check_rank(tp, rank)
    rows: list[Rows] = []
    offset = 0
    for index, width in enumerate(sections):
        if width % tp:
            raise ValueError(f"section {index} is {width} rows wide; TP {tp} must divide it (sections {sections})")
        part = width // tp
        rows.append(Rows(offset + rank * part, offset + (rank + 1) * part))
        offset += width
    return tuple(rows)


def shard_contiguous(rows: int, tp: int, rank: int) -> Rows:
    """One contiguous piece: right for unfused weights, for vocabulary rows and for the group-interleaved layout."""
    _check_rank(tp, rank)
    if rows % tp:
        raise ValueError(f"{rows} rows; TP {tp} must divide them")
    part = rows // tp
    return Rows(rank * part, (rank + 1) * part)


def shard_fused(sections: tuple[int, ...], tp: int, rank: int, layout: Layout) -> tuple[Rows, ...]:
    """Rows of a fused weight for ``rank``, for either checkpoint layout."""
    if layout is Layout.GROUPS:
        return (shard_contiguous(sum(sections), tp, rank),)
    return shard_sections(sections, tp, rank)


def _check_rank(tp: int, rank: int) -> None:
    if tp < 1 or tp & (tp - 1):
        raise ValueError(f"TP {tp}; a power of two is needed")
    if not 0 <= rank < tp:
        raise ValueError(f"rank {rank}; allowed: 0 to {tp - 1}")
