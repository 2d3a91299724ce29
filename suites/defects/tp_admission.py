"""Ways in which a tensor-parallel split or a padded width goes wrong."""

from __future__ import annotations

from collections.abc import Callable

from engine.parallel.shards import Rows
from suites.defects import Defect

_ADMISSION = "suites/tp_admission/test_admission.py"
_SHARDS = "suites/tp_admission/test_shards.py"


def _to_sixteen(original: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """8240 = 16 * 515 passes for aligned; 4120 still becomes 4128, so TP 4 looks right."""
    return lambda width, _multiple: original(width, 16)


def _one_contiguous_piece(_original: object) -> Callable[[tuple[int, ...], int, int], tuple[Rows, ...]]:
    def shard_sections(sections: tuple[int, ...], tp: int, rank: int) -> tuple[Rows, ...]:
        part = sum(sections) // tp
        return (Rows(rank * part, (rank + 1) * part),)

    return shard_sections


DEFECTS = (
    Defect(
        name="admission-aligns-to-16",
        description="the physical width is rounded up to 16 columns instead of 32",
        scope="tp_admission",
        owner="engine.linear.admission",
        attribute="round_up",
        spoil=_to_sixteen,
        must_go_red=(f"{_ADMISSION}::test_reference_model_widths[gdn-in-tp2]",),
    ),
    Defect(
        name="shards-split-contiguously",
        description="concatenated sections are cut as one block, so rank 0 gets q and part of k",
        scope="tp_admission",
        owner="engine.parallel.shards",
        attribute="shard_sections",
        spoil=_one_contiguous_piece,
        must_go_red=(
            f"{_SHARDS}::test_toy_projection_by_hand",
            f"{_SHARDS}::test_contiguous_piece_of_concatenated_sections_is_wrong",
        ),
    ),
)
