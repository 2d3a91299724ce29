"""Shapes of the paged KV cache, and the rows that a q-expanded call sees. Integers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def kv_axis(shape: Sequence[int]) -> int:
    """The axis that holds K and V: 1 where it has two entries, else 0 where that has.

    The engine allocates ``[num_blocks, 2, block_size, Hkv, D]``, so axis 1 is asked first: with two blocks both axes
    have two entries. Raises ``ValueError`` for any other shape.
    """
    if len(shape) == 5:
        if shape[1] == 2:
            return 1
        if shape[0] == 2:
            return 0
    raise ValueError(
        f"KV cache of shape {tuple(shape)}: expected [num_blocks, 2, block_size, Hkv, D] or "
        f"[2, num_blocks, block_size, Hkv, D]"
    )


@dataclass(frozen=True, slots=True)
class ExpandedRows:
    """A small-q call as decode rows: row ``i`` belongs to sequence ``owner[i]`` and sees ``lengths[i]`` tokens.

    Padded rows have owner -1 and length 0: they read nothing and write zeros.
    """

    owner: tuple[int, ...]
    lengths: tuple[int, ...]


def expand_rows(query_lens: Sequence[int], seq_lens: Sequence[int], graph_rows: int | None = None) -> ExpandedRows:
    """Row lengths ``prefix + 1 .. prefix + q`` for every sequence, padded to ``graph_rows``.

    Raises ``ValueError`` where a sequence is shorter than its query rows (a dummy length would give negative rows and
    poison every replay), or where the rows do not fit into the graph.
    """
    owner: list[int] = []
    lengths: list[int] = []
    for index, (rows, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if length < rows:
            raise ValueError(f"sequence {index} has {length} tokens and {rows} query rows; rows are its last positions")
        owner.extend([index] * rows)
        lengths.extend(range(length - rows + 1, length + 1))
    total = len(owner) if graph_rows is None else graph_rows
    if total < len(owner):
        raise ValueError(f"{len(owner)} rows do not fit into a graph of {total} rows; capture a larger size")
    padding = total - len(owner)
    return ExpandedRows(tuple(owner) + (-1,) * padding, tuple(lengths) + (0,) * padding)
