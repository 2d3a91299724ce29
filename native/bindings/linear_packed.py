"""Linear layers over 4-bit weights in the SM70 packing, and the logits of chosen rows of a head."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call
from native.bindings.linear import LINEAR_FIELDS, linear_fields
from native.cuda_bindings.packed import CHUNK, COLUMNS, PackedInt4, PackedNvfp4, check_few_rows

_LANE_BYTES = 16


class _PackedLinear(Args):
    _fields_ = (
        *LINEAR_FIELDS,
        ("params", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        ("global_scale", ctypes.c_double),
    )


class LinearInt4(_PackedLinear):
    OP = "linear_int4_cpu"
    CAPABILITY = 1


class LinearNvfp4(_PackedLinear):
    OP = "linear_nvfp4_cpu"
    CAPABILITY = 1


class LinearNvfp4Small(_PackedLinear):
    OP = "linear_nvfp4_small_cpu"
    CAPABILITY = 1


class CandidateLogits(Args):
    OP = "candidate_logits_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("candidates", ctypes.c_int64),
        ("vocab", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("weight_bytes", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("ids_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
    )


def bind_linear_int4(
    x: torch.Tensor, weight: PackedInt4, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Call:
    """x [M, K] @ W.T (+ residual) -> float32 [M, n] of the logical width, whatever the padding."""
    tiles = _check_codes(weight.codes, weight.n, weight.k)
    if weight.group < CHUNK or weight.group % CHUNK or weight.k % weight.group:
        raise ValueError(
            f"weight.group: saw {weight.group} for k {weight.k}, need a multiple of {CHUNK} that divides k"
        )
    params = (tiles, weight.k // weight.group, COLUMNS, 2)
    check.tensor("weight.params", weight.params, torch.float16, params)
    out, fields = linear_fields(x, weight.codes, weight.n, weight.k, residual, out)
    args = LinearInt4(**fields, params=weight.params.data_ptr(), group=weight.group, global_scale=1.0)
    return Call(args, out, (x, weight.codes, weight.params, residual))


def bind_linear_nvfp4(
    x: torch.Tensor,
    weight: PackedNvfp4,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    few_rows: bool = False,
) -> Call:
    """x [M, K] @ W.T (+ residual) -> float32 [M, n] of the logical width, whatever the padding.

    ``few_rows``: by the kernel for at most `native.cuda_bindings.packed.FEW_ROWS` rows, with the same bits.
    """
    tiles = _check_codes(weight.codes, weight.n, weight.k)
    check.tensor("weight.scales", weight.scales, torch.float8_e4m3fn, (tiles, weight.k // CHUNK, COLUMNS, 2))
    check.positive("weight.global_scale", weight.global_scale)
    if few_rows:
        check_few_rows(x)
    out, fields = linear_fields(x, weight.codes, weight.n, weight.k, residual, out)
    op = LinearNvfp4Small if few_rows else LinearNvfp4
    args = op(**fields, params=weight.scales.data_ptr(), group=CHUNK, global_scale=weight.global_scale)
    return Call(args, out, (x, weight.codes, weight.scales, residual))


def bind_candidate_logits(
    x: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None = None
) -> Call:
    """float32 [M, C] dots of ``x`` float32 [M, K] with rows ``ids`` int64 [M, C] of ``weight`` [V, K]."""
    check.tensor("weight", weight, (torch.float32, torch.float16), (None, None))
    vocab, k = weight.shape
    check.tensor("x", x, torch.float32, (None, k), contiguous=False)
    check.tensor("ids", ids, torch.int64, (x.shape[0], None), contiguous=False)
    m, candidates = ids.shape
    out = check.output("out", out, torch.float32, (m, candidates))
    args = CandidateLogits(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        ids=ids.data_ptr(),
        out=out.data_ptr(),
        m=m,
        candidates=candidates,
        vocab=vocab,
        k=k,
        weight_bytes=weight.element_size(),
        x_stride=x.stride(0),
        ids_stride=ids.stride(0),
        out_stride=out.stride(0),
    )
    return Call(args, out, (x, weight, ids))


def _check_codes(codes: torch.Tensor, n: int, k: int) -> int:
    tiles = -(-n // COLUMNS)
    if k <= 0 or k % CHUNK:
        raise ValueError(f"weight.k: saw {k}, need a positive multiple of {CHUNK}")
    check.tensor("weight.codes", codes, torch.uint8, (tiles, k // CHUNK, COLUMNS, _LANE_BYTES))
    return tiles
