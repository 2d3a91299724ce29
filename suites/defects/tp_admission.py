"""Ways in which a tensor-parallel split or a padded width goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.parallel.shards import Rows
from suites.defects import Defect

if TYPE_CHECKING:
    import torch

    from engine.linear.admission import Admitted
    from engine.linear.nvfp4 import Nvfp4Matrix

_ADMISSION = "suites/tp_admission/test_admission.py"
_SHARDS = "suites/tp_admission/test_shards.py"
_ADAPTER = "suites/tp_admission/test_adapter.py"
_HEAD = "suites/tp_admission/test_head.py"
_RANKS = "suites/tp_admission/test_ranks.py"
_TAPS = "suites/tp_admission/test_taps.py"


def _to_sixteen(original: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """8240 = 16 * 515 passes for aligned; 4120 still becomes 4128, so TP 4 looks right."""
    return lambda width, _multiple: original(width, 16)


def _one_contiguous_piece(_original: object) -> Callable[[tuple[int, ...], int, int], tuple[Rows, ...]]:
    def shard_sections(sections: tuple[int, ...], tp: int, rank: int) -> tuple[Rows, ...]:
        part = sum(sections) // tp
        return (Rows(rank * part, (rank + 1) * part),)

    return shard_sections


def _slice_last(_original: object) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Parts and bias by the physical width; each part is cut to its logical width at the end."""

    def finished(physical: torch.Tensor, admitted: Admitted, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        widths = admitted.section_widths or (admitted.logical_n,)
        if bias is not None:
            physical[:, -len(bias) :] += bias
        starts = [sum(widths[:index]) * admitted.physical_n // admitted.logical_n for index in range(len(widths))]
        return tuple(physical[:, start : start + width] for start, width in zip(starts, widths, strict=True))

    return finished


def _whatever_was_there(_original: object) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """The padding is allocated and never written: NaN where it is float16, 10 where it is codes."""

    def padded_rows(rows: torch.Tensor, physical: int) -> torch.Tensor:
        out = rows.new_full((physical, *rows.shape[1:]), float("nan") if rows.is_floating_point() else 0x0A)
        out[: len(rows)] = rows
        return out

    return padded_rows


def _fp16_at_two(original: Callable[..., torch.dtype]) -> Callable[..., torch.dtype]:
    def logits_dtype(projection: Any, tp: int, *, fp32_logits: bool) -> torch.dtype:
        return original(projection, tp, fp32_logits=fp32_logits and tp != 2)

    return logits_dtype


def _environment_alone(
    original: Callable[[int | None, Mapping[str, str]], int],
) -> Callable[[int | None, Mapping[str, str]], int]:
    return lambda _group_rank, environ: original(None, environ)


def _the_tensor_itself(_original: object) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x


def _the_largest(_original: object) -> Callable[[Sequence[Nvfp4Matrix]], list[Nvfp4Matrix]]:
    def one_global_scale(parts: Sequence[Nvfp4Matrix]) -> list[Nvfp4Matrix]:
        from dataclasses import replace

        largest = max(part.global_scale for part in parts)
        return [replace(part, global_scale=largest) for part in parts]

    return one_global_scale


def _last_rank_first(
    original: Callable[[torch.Tensor, torch.Tensor], None],
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    return lambda parts, out: original(parts.flip(0), out)


DEFECTS = (
    Defect(
        name="admission-aligns-to-16",
        description="the physical width is rounded up to 16 columns instead of 32",
        scope="tp_admission",
        owner="engine.linear.admission",
        attribute="round_up",
        spoil=_to_sixteen,
        must_go_red=(
            f"{_ADMISSION}::test_reference_model_widths[gdn-in-tp2]",
            f"{_ADAPTER}::test_padded_equals_unpadded[8240-8256-1]",
        ),
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
    Defect(
        name="adapter-slices-after-bias",
        description="bias and sections are laid out by the physical width, and the padding is cut off at the end",
        scope="tp_admission",
        owner="engine.linear.adapter",
        attribute="finished",
        spoil=_slice_last,
        must_go_red=(
            f"{_ADAPTER}::test_bias_and_sections_see_the_logical_width",
            f"{_ADAPTER}::test_the_order_by_hand",
        ),
    ),
    Defect(
        name="adapter-leaves-padding-uninitialised",
        description="codes, scales and zero points of the padding are whatever the memory held",
        scope="tp_admission",
        owner="engine.linear.adapter",
        attribute="padded_rows",
        spoil=_whatever_was_there,
        must_go_red=(
            f"{_ADAPTER}::test_padded_equals_unpadded[24-32-8]",
            f"{_ADAPTER}::test_int4_pads_its_zero_points_too[24-32]",
            f"{_ADAPTER}::test_padding_rows_are_zeros",
        ),
    ),
    Defect(
        name="adapter-takes-the-largest-global-scale",
        description="parts with unequal global scales are multiplied by the largest of them",
        scope="tp_admission",
        owner="engine.linear.fold",
        attribute="one_global_scale",
        spoil=_the_largest,
        must_go_red=(
            f"{_ADAPTER}::test_powers_of_two_between_global_scales_fold_exactly[half]",
            f"{_ADAPTER}::test_powers_of_two_between_global_scales_fold_exactly[four-times]",
            f"{_ADAPTER}::test_other_global_scales_are_refused",
        ),
    ),
    Defect(
        name="head-tp2-stays-fp16",
        description="the FP32 flag is honoured at TP 4 alone; TP 2 silently keeps FP16 logits",
        scope="tp_admission",
        owner="engine.parallel.head",
        attribute="logits_dtype",
        spoil=_fp16_at_two,
        must_go_red=(
            f"{_HEAD}::test_the_dtype_of_the_logits_follows_from_flag_and_size[flag-on-2]",
            f"{_HEAD}::test_fp32_logits_of_real_ranks[2]",
        ),
    ),
    Defect(
        name="rank-from-the-environment-alone",
        description="a process asks RANK and LOCAL_RANK, not its process group, who it is",
        scope="tp_admission",
        owner="engine.parallel.rank",
        attribute="current_rank",
        spoil=_environment_alone,
        must_go_red=(
            *(f"{_RANKS}::test_the_group_knows_better_than_a_stale_environment[{rank}]" for rank in (1, 2, 3)),
            f"{_RANKS}::test_real_ranks_tell_who_they_are",
            f"{_TAPS}::test_files_of_real_ranks_carry_the_rank_and_replicas_count_once[2]",
        ),
    ),
    Defect(
        name="tap-returns-its-input",
        description="a diagnostic tap hands out the live tensor instead of a copy",
        scope="tp_admission",
        owner="engine.parallel.tap",
        attribute="tap",
        spoil=_the_tensor_itself,
        must_go_red=(
            f"{_TAPS}::test_a_tap_in_eager_code_owns_its_storage",
            f"{_TAPS}::test_a_traced_function_may_use_the_tapped_and_the_live_tensor",
        ),
    ),
    Defect(
        name="sums-in-another-order",
        description="partial sums are added from the last rank to the first",
        scope="tp_admission",
        owner="engine.parallel.collectives",
        attribute="ordered_sum",
        spoil=_last_rank_first,
        must_go_red=(f"{_RANKS}::test_a_sum_over_ranks_has_the_bits_of_the_ordered_reference[4-fp32]",),
    ),
)
