"""Shards of fused weights against an oracle that labels every row with its head."""

from __future__ import annotations

import pytest

from engine.parallel.shards import Layout, Rows, shard_contiguous, shard_fused, shard_sections
from suites.oracles.shards import interleaved_rows_of_rank, rows_of_rank
from suites.recording import Record

# (heads, rows per head) of every section.
TOY_GDN_QKV = ((4, 1), (4, 1), (12, 1))
MODEL_SECTIONS = {
    "gdn-in-q-k-v-z-b-a": ((16, 128), (16, 128), (48, 128), (48, 128), (48, 1), (48, 1)),
    "gdn-conv-rows": ((16, 128), (16, 128), (48, 128)),
    "gdn-decay-per-head": ((48, 1),),
    "attention-q-gate-k-v": ((24, 512), (4, 256), (4, 256)),
    "mlp-gate-up": ((17408, 1), (17408, 1)),
    "vocabulary": ((248320, 1),),
}
RANKS = [(tp, rank) for tp in (1, 2, 4) for rank in range(tp)]


def _flat(parts: tuple[Rows, ...]) -> list[int]:
    return [row for part in parts for row in range(part.start, part.stop)]


@pytest.mark.parametrize(("tp", "rank"), [(2, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_toy_projection_by_hand(tp: int, rank: int, record: Record) -> None:
    """Hk = 4, Hv = 12, d = 1: rows [4r/TP, 4(r+1)/TP), then 4 + the same, then 8 + [12r/TP, 12(r+1)/TP)."""
    record.group("shards")
    by_hand = [
        *range(4 * rank // tp, 4 * (rank + 1) // tp),
        *range(4 + 4 * rank // tp, 4 + 4 * (rank + 1) // tp),
        *range(8 + 12 * rank // tp, 8 + 12 * (rank + 1) // tp),
    ]
    assert rows_of_rank(TOY_GDN_QKV, tp, rank) == by_hand, "the oracle itself is wrong"
    assert _flat(shard_sections((4, 4, 12), tp, rank)) == by_hand


@pytest.mark.parametrize(("tp", "rank"), RANKS)
@pytest.mark.parametrize("sections", MODEL_SECTIONS.values(), ids=MODEL_SECTIONS)
def test_model_sections(sections: tuple[tuple[int, int], ...], tp: int, rank: int, record: Record) -> None:
    record.group("shards")
    widths = tuple(heads * rows for heads, rows in sections)
    assert _flat(shard_fused(widths, tp, rank, Layout.SECTIONS)) == rows_of_rank(sections, tp, rank)


@pytest.mark.parametrize(("tp", "rank"), RANKS)
def test_group_interleaved_layout_is_contiguous(tp: int, rank: int, record: Record) -> None:
    """One k-head group after the other, [q | k | v x 3 | z x 3] in each: there the contiguous piece is right."""
    record.group("shards")
    group = (128, 128, 3 * 128, 3 * 128)
    widths = tuple(16 * part for part in group)
    expected = interleaved_rows_of_rank(16, group, tp, rank)
    assert _flat(shard_fused(widths, tp, rank, Layout.GROUPS)) == expected


@pytest.mark.parametrize("tp", [2, 4])
def test_contiguous_piece_of_concatenated_sections_is_wrong(tp: int, record: Record) -> None:
    """The published reference split q|k|v as one block; rank 0 then holds all of q and part of k."""
    record.group("shards")
    widths = (2048, 2048, 6144)
    for rank in range(tp):
        piece = shard_contiguous(sum(widths), tp, rank)
        assert list(range(piece.start, piece.stop)) != _flat(shard_sections(widths, tp, rank))


def test_every_row_has_one_owner(record: Record) -> None:
    record.group("shards")
    for sections in MODEL_SECTIONS.values():
        widths = tuple(heads * rows for heads, rows in sections)
        owned = sorted(row for rank in range(4) for row in _flat(shard_sections(widths, 4, rank)))
        assert owned == list(range(sum(widths)))


@pytest.mark.parametrize(
    ("sections", "tp", "rank", "message"),
    [
        ((10, 4), 4, 0, "section 0 is 10 rows wide; TP 4 must divide it"),
        ((8, 8), 3, 0, "TP 3; a power of two"),
        ((8, 8), 2, 2, "rank 2; allowed: 0 to 1"),
    ],
    ids=["indivisible", "tp-3", "rank-too-large"],
)
def test_refusals_name_what_was_seen(
    sections: tuple[int, ...], tp: int, rank: int, message: str, record: Record
) -> None:
    record.group("shards")
    with pytest.raises(ValueError, match=message):
        shard_sections(sections, tp, rank)
