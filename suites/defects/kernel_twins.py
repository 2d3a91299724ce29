"""Ways in which the CPU twins of the device ops go wrong: codes, cache stores, Gated DeltaNet, packed weights, gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suites.defects import Defect

_TWINS = "suites/kernels/test_cpu_twins.py"
_FUZZ = "suites/kernels/test_fuzz.py"
_FUZZ_TWINS = "suites/kernels/test_fuzz_twins.py"

Op = Callable[..., Any]


def _nan_codes_are_480(original: Op) -> Op:
    """What the shift-and-scale decoder makes of the two NaN codes of E4M3."""

    def fp8_decode(codes: torch.Tensor, *, scale: float, out_dtype: torch.dtype) -> torch.Tensor:
        decoded: torch.Tensor = original(codes, scale=scale, out_dtype=out_dtype)
        return torch.where(decoded.isnan(), torch.full_like(decoded, 480 * scale), decoded)

    return fp8_decode


def _ties_away_from_zero(original: Op) -> Op:
    """A tie of two codes takes the larger one; nothing else moves, a half has three bits to spare."""

    def fp8_encode(x: torch.Tensor, dtype: torch.dtype, *, scale: float = 1.0) -> torch.Tensor:
        moved = x.float() * (1 + 2.0**-16)
        return original(moved, dtype, scale=scale)  # type: ignore[no-any-return]

    return fp8_encode


def _pad_stored_in_slot_zero(original: Op) -> Op:
    def store_kv(*arguments: Any, **options: Any) -> None:
        *before, slots = arguments
        original(*before, slots.clamp(min=0), **options)

    return store_kv


def _first_decay_of_a_chunk_lost(original: Op) -> Op:
    def delta_rule(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, *rest: Any, **out: Any
    ) -> Any:
        lost = decay.clone()
        lost[::64] = 0
        return original(q, k, v, lost, *rest, **out)

    return delta_rule


def _one_state_a_sequence(original: Op) -> Op:
    """Only the last position of a sequence keeps its state, so that no rejected draft can be undone."""

    def gdn_recurrent(*arguments: Any, **options: Any) -> Any:
        *before, slots, query_start = arguments
        kept = torch.full_like(slots, -1)
        last = query_start[1:].long() - 1
        kept[last] = slots[last]
        return original(*before, kept, query_start, **options)

    return gdn_recurrent


def _taps_reversed(original: Op) -> Op:
    def gdn_conv(x: torch.Tensor, weight: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return original(x, weight.flip(1).contiguous(), *rest, **options)

    return gdn_conv


def _decay_and_beta_confused(original: Op) -> Op:
    return lambda a, b, *rest, **options: original(b, a, *rest, **options)


def _gate_before_the_norm(original: Op) -> Op:
    def gdn_gated_rms_norm(
        x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        gated = x * torch.nn.functional.silu(z)
        result = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps) * weight
        return result if out is None else out.copy_(result)

    return gdn_gated_rms_norm


def _global_scale_of_the_other_kind(original: Op) -> Op:
    """The multiplier of one checkpoint convention taken for the divisor of the other."""
    other = {"multiply": "divide", "divide": "multiply"}
    return lambda codes, scales, scale, convention: original(codes, scales, scale, other[convention])


def _next_row_scored(original: Op) -> Op:
    def candidate_logits(x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        return original(x, weight, (ids + 1) % weight.shape[0], **options)  # type: ignore[no-any-return]

    return candidate_logits


def _rows_rounded_to_half(original: Op) -> Op:
    def embedding(*arguments: Any, **options: Any) -> torch.Tensor:
        rows: torch.Tensor = original(*arguments, **options)
        return rows.copy_(rows.half())

    return embedding


def _shifted(original: Op) -> Op:
    """Every number one unit of the twins' agreement too large."""

    def op(*arguments: Any, **options: Any) -> torch.Tensor:
        out: torch.Tensor = original(*arguments, **options)
        return out.mul_(1.01)

    return op


def _kernel_outgrows_an_sm(original: Op) -> Op:
    """The compiler's report of one kernel that asks for 97 KiB of shared memory."""

    def read_record(*arguments: Any, **options: Any) -> Any:
        record = original(*arguments, **options)
        if record is not None and isinstance(record["device_images"], list):
            record["kernels"][0]["dynamic_shared"] = 97 * 1024
        return record

    return read_record


def _defect(name: str, description: str, attribute: str, spoil: Callable[[Any], Any], *must_go_red: str) -> Defect:
    return Defect(f"kernels-{name}", description, "kernels", "engine.ops.functional", attribute, spoil, must_go_red)


DEFECTS = (
    _defect(
        "nan-codes-finite",
        "the NaN codes of E4M3 are decoded as 480",
        "fp8_decode",
        _nan_codes_are_480,
        f"{_TWINS}::test_all_codes_decode_exactly[f16-1.0-e4m3]",
        f"{_TWINS}::test_all_codes_decode_exactly[f32-0.0371-e4m3]",
    ),
    _defect(
        "ties-away-from-zero",
        "ties between two FP8 codes are rounded away from zero",
        "fp8_encode",
        _ties_away_from_zero,
        f"{_TWINS}::test_all_halves_encode_exactly[1.0-e4m3]",
        f"{_TWINS}::test_all_halves_encode_exactly[0.5-e5m2]",
        "suites/kernels/test_fp8_kv_error.py::test_gaussian_error_is_what_theory_says",
    ),
    _defect(
        "pad-stored-in-slot-zero",
        "the FP8 store writes rows of slot -1 to slot 0",
        "store_kv",
        _pad_stored_in_slot_zero,
        f"{_TWINS}::test_store_writes_the_codes_of_its_slots_alone",
    ),
    _defect(
        "chunk-forgets-a-decay",
        "the first token of a chunk does not decay the state",
        "gdn_chunk",
        _first_decay_of_a_chunk_lost,
        f"{_TWINS}::test_chunked_prefill",
    ),
    _defect(
        "one-state-a-sequence",
        "the recurrence keeps the state of the last position alone",
        "gdn_recurrent",
        _one_state_a_sequence,
        f"{_TWINS}::test_recurrence_keeps_one_state_a_position",
    ),
    _defect(
        "taps-reversed",
        "the convolution reads its taps in the other order",
        "gdn_conv",
        _taps_reversed,
        f"{_TWINS}::test_convolution_and_its_states",
        f"{_FUZZ_TWINS}::test_gdn_conv",
    ),
    _defect(
        "decay-and-beta-confused",
        "the decay is made of b and beta of a",
        "gdn_gates",
        _decay_and_beta_confused,
        f"{_TWINS}::test_gates",
        f"{_FUZZ_TWINS}::test_gdn_gates",
    ),
    _defect(
        "gate-before-the-norm",
        "the output gate is applied before the norm",
        "gdn_gated_rms_norm",
        _gate_before_the_norm,
        f"{_TWINS}::test_gated_norm_comes_before_the_gate",
    ),
    _defect(
        "global-scale-divides",
        "the global scale of NVFP4 divides where it multiplies",
        "pack_nvfp4",
        _global_scale_of_the_other_kind,
        f"{_TWINS}::test_nvfp4_at_padded_widths",
    ),
    _defect(
        "next-row-scored",
        "a candidate gets the logit of the row after it",
        "candidate_logits",
        _next_row_scored,
        f"{_TWINS}::test_candidate_logits_are_the_dense_ones",
        f"{_FUZZ_TWINS}::test_candidate_logits",
    ),
    _defect(
        "embedding-rounded",
        "embedding rows are rounded to fp16 on the way",
        "embedding",
        _rows_rounded_to_half,
        "suites/kernels/test_embedding.py::test_q8_0_rows_are_exact",
    ),
    _defect(
        "twin-drifts",
        "an op is one per cent off its plain twin",
        "rms_norm",
        _shifted,
        f"{_FUZZ}::test_rms_norm",
    ),
    Defect(
        "kernels-outgrows-an-sm",
        "a kernel asks for more shared memory than a block of a V100 has",
        "kernels",
        "native.built",
        "read_record",
        _kernel_outgrows_an_sm,
        ("suites/kernels/test_build.py::test_resources_fit_a_v100",),
    ),
)
