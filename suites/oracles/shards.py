"""Which rows a rank owns, by labelling every row with its head and asking who owns that head.

The other way round than a plan of offsets: each row of the unsharded weight is written down as (section, head, row in
head), and a rank takes the rows whose head is in its contiguous share of that section's heads.
"""

from __future__ import annotations


def rows_of_rank(sections: tuple[tuple[int, int], ...], tp: int, rank: int) -> list[int]:
    """Row numbers that ``rank`` stores, in its order. ``sections``: (heads, rows per head) of each, in order."""
    labels = [
        (section, head)
        for section, (heads, rows_per_head) in enumerate(sections)
        for head in range(heads)
        for _ in range(rows_per_head)
    ]
    owned: list[int] = []
    for section, (heads, _) in enumerate(sections):
        mine = {head for head in range(heads) if head * tp // heads == rank}
        owned += [row for row, (of, head) in enumerate(labels) if of == section and head in mine]
    return owned


def interleaved_rows_of_rank(groups: int, group_sections: tuple[int, ...], tp: int, rank: int) -> list[int]:
    """The same for a checkpoint that stores one k-head group after the other, each with its parts side by side."""
    per_group = sum(group_sections)
    return [row for row in range(groups * per_group) if (row // per_group) * tp // groups == rank]
