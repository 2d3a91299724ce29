"""Ways in which a kernel goes wrong that a casual test passes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suites.defects import Defect

_ATTENTION = "suites/kernels/test_paged_attention.py"
_LINEAR = "suites/kernels/test_linear.py"
_ROPE = "suites/kernels/test_rope_store_kv.py"
_DETERMINISM = "suites/kernels/test_determinism.py"

Op = Callable[..., torch.Tensor]


def _one_row_past_the_end(original: Op) -> Op:
    """Every sequence is one token longer than it is, where the table has room for that token."""

    def paged_attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        query_start: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        most = block_table.shape[1] * k_cache.shape[1]
        longer = torch.clamp(seq_lens + 1, max=most).to(torch.int32)
        return original(q, k_cache, v_cache, block_table, longer, query_start, **options)

    return paged_attention


def _window_off_by_one(original: Op) -> Op:
    def paged_attention(*arguments: Any, window: tuple[int, int] = (-1, -1), **options: Any) -> torch.Tensor:
        left, right = window
        return original(*arguments, window=(left + 1 if left >= 0 else left, right), **options)

    return paged_attention


def _pad_is_slot_zero(original: Op) -> Op:
    def rope_store_kv(*arguments: Any, **options: Any) -> torch.Tensor:
        *before, slot_mapping = arguments
        return original(*before, slot_mapping.clamp(min=0), **options)

    return rope_store_kv


def _other_pairs(original: Op) -> Op:
    return lambda *arguments, interleaved, **options: original(*arguments, interleaved=not interleaved, **options)


def _fp16_accumulator(original: Op) -> Op:
    """The result keeps only what an fp16 accumulator would have kept."""

    def linear(*arguments: Any, **options: Any) -> torch.Tensor:
        out = original(*arguments, **options)
        return out.copy_(out.half().to(out.dtype))

    return linear


def _residual_forgotten(original: Op) -> Op:
    def linear(*arguments: Any, residual: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        return original(*arguments, **options)

    return linear


def _last_row_unwritten(original: Op) -> Op:
    """A tail of the output is left as it was found."""

    def rms_norm(x: torch.Tensor, *arguments: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        result = original(x, *arguments)
        if out is None:
            return result
        width = x.shape[1] - x.shape[1] % 16 or x.shape[1]
        out[:, :width] = result[:, :width]
        return out

    return rms_norm


def _noise(original: Op) -> Op:
    """Bits that depend on the run: what a float atomic does."""

    def silu_mul(*arguments: Any, **options: Any) -> torch.Tensor:
        out = original(*arguments, **options)
        return out.mul_(1 + torch.randint(0, 2, out.shape) * 2.0**-23)

    return silu_mul


def _swapped_gate(original: Op) -> Op:
    def silu_mul(gate_up: torch.Tensor, **options: Any) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return original(torch.cat((up, gate), dim=-1), **options)

    return silu_mul


def _nibbles_side_by_side(original: Op) -> Op:
    """Reads byte j as elements 2j and 2j + 1 instead of j and j + 16."""

    def pack_q4_1(blocks: torch.Tensor) -> Any:
        nibbles = torch.stack((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), dim=-1).flatten(-2)
        wrong = nibbles[..., :16] | nibbles[..., 16:] << 4
        return original(torch.cat((blocks[..., :4], wrong), dim=-1))

    return pack_q4_1


def _defect(name: str, description: str, attribute: str, spoil: Callable[[Any], Any], *must_go_red: str) -> Defect:
    return Defect(f"kernels-{name}", description, "kernels", "engine.ops.functional", attribute, spoil, must_go_red)


DEFECTS = (
    _defect(
        "row-past-live-length",
        "attention reads one KV row past the live length",
        "paged_attention",
        _one_row_past_the_end,
        f"{_ATTENTION}::test_decode",
        f"{_ATTENTION}::test_poison_beyond_the_live_length_never_counts",
    ),
    _defect(
        "window-off-by-one",
        "the sliding window is one key too wide on the left",
        "paged_attention",
        _window_off_by_one,
        f"{_ATTENTION}::test_masks[L300,40-q8,40-h9:3-d64-b16-cw16,-1]",
        f"{_ATTENTION}::test_masks[L300-q8-h9:3-d64-b16-cw0,-1]",
    ),
    _defect(
        "pad-written-to-slot-zero",
        "rows with slot -1 are written to slot 0",
        "rope_store_kv",
        _pad_is_slot_zero,
        f"{_ROPE}::test_pad_slots_are_not_written",
    ),
    _defect(
        "other-rope-layout",
        "interleaved and half-split pairs are confused",
        "rope_store_kv",
        _other_pairs,
        f"{_ROPE}::test_model_shape",
    ),
    _defect(
        "fp16-logits",
        "products are rounded to fp16 on the way",
        "linear",
        _fp16_accumulator,
        f"{_LINEAR}::test_against_fp64[dense-m1-n960-k576]",
        "suites/kernels/test_head.py::test_fp32_logits_keep_what_fp16_collapses",
    ),
    _defect(
        "residual-forgotten",
        "the residual is not added",
        "linear",
        _residual_forgotten,
        f"{_LINEAR}::test_residual_is_added_and_may_be_the_output",
    ),
    _defect(
        "tail-unwritten",
        "columns beyond the last whole vector are never written",
        "rms_norm",
        _last_row_unwritten,
        "suites/kernels/test_rms_norm.py::test_against_fp64[5-33]",
        "suites/kernels/test_rms_norm.py::test_against_fp64[17-1000]",
    ),
    _defect(
        "bits-differ-between-launches",
        "the last bit depends on the run, as with float atomics",
        "silu_mul",
        _noise,
        f"{_DETERMINISM}::test_six_launches[silu_mul]",
        f"{_DETERMINISM}::test_thread_counts[silu_mul]",
    ),
    _defect(
        "gate-and-up-swapped",
        "SiLU is applied to the second half",
        "silu_mul",
        _swapped_gate,
        "suites/kernels/test_silu_mul.py::test_against_fp64",
    ),
    _defect(
        "nibble-order",
        "Q4_1 nibbles are taken as neighbours instead of 16 apart",
        "pack_q4_1",
        _nibbles_side_by_side,
        f"{_LINEAR}::test_packing_loses_nothing[q4_1]",
        f"{_LINEAR}::test_one_hot_rows_read_single_weights[q4_1]",
    ),
)
