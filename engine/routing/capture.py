"""Which sizes are captured as graphs, and what a persistent buffer may hold. Nothing depends on tensor parallelism."""

from __future__ import annotations

PLAIN_SIZES = (1, 2, 4, 8, 16)
PLAIN_MAX = 16
SPECULATIVE_REQUESTS = (1, 2, 3, 4, 6, 8, 12, 16)
SPECULATIVE_MAX = 16
MTP_WIDTH = 5
DFLASH2_WIDTH = 8
"""Query rows of one verified proposal: an anchor and 4 (MTP) or 7 (DFlash2) drafted tokens."""


def plain_capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes captured for decode without speculation: the powers of two and the scheduler's own limit, up to 16.

    Sizes 1 and 2 are always captured.
    """
    largest = min(_positive("max_num_seqs", max_num_seqs), PLAIN_MAX)
    return sorted({size for size in PLAIN_SIZES if size <= largest} | {1, 2, largest})


def speculative_capture_sizes(max_num_seqs: int, width: int) -> list[int]:
    """Row counts captured for verification: whole requests of ``width`` rows each, up to 16 requests.

    ``width``: 5 for MTP with four drafts, 8 for DFlash2, K + 1 in general.
    """
    largest = min(_positive("max_num_seqs", max_num_seqs), SPECULATIVE_MAX)
    requests = {count for count in SPECULATIVE_REQUESTS if count <= largest} | {largest}
    return [_positive("width", width) * count for count in sorted(requests)]


def captured_size(rows: int, sizes: list[int]) -> int | None:
    """The smallest captured size that holds ``rows`` rows; ``None``: this call runs eagerly."""
    return min((size for size in sizes if size >= rows), default=None)


def check_capacity(what: str, needed: int, capacity: int) -> None:
    """Raise ``RuntimeError`` where a persistent buffer is too small: a graph knows its address, so it never grows."""
    if needed > capacity:
        raise RuntimeError(
            f"{what}: {needed} needed, persistent buffer capacity is {capacity}; capture larger sizes or raise "
            f"max_num_seqs or max_model_len before the capture"
        )


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} is {value}; at least 1 is needed")
    return value
