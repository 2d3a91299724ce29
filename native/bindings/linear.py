"""Linear layers and the embedding: quantised tiles, dense float32."""

from __future__ import annotations

import ctypes

import torch

from native.bindings import check
from native.bindings.call import Args, Call

GROUP = 32
ROWS = 16
_TILE_BYTES = {"q4_1": 320, "q8_0": 544}


LINEAR_FIELDS = (
    ("x", ctypes.c_void_p),
    ("weight", ctypes.c_void_p),
    ("residual", ctypes.c_void_p),
    ("out", ctypes.c_void_p),
    ("m", ctypes.c_int64),
    ("n", ctypes.c_int64),
    ("k", ctypes.c_int64),
    ("x_stride", ctypes.c_int64),
    ("residual_stride", ctypes.c_int64),
    ("out_stride", ctypes.c_int64),
)


class _Linear(Args):
    _fields_ = LINEAR_FIELDS


class LinearQ41(_Linear):
    OP = "linear_q4_1_cpu"
    CAPABILITY = 1


class LinearQ80(_Linear):
    OP = "linear_q8_0_cpu"
    CAPABILITY = 1


class LinearF32(_Linear):
    OP = "linear_f32_cpu"
    CAPABILITY = 1


class LinearF16(_Linear):
    OP = "linear_f16_cpu"
    CAPABILITY = 1


def bind_linear_q4_1(
    x: torch.Tensor, data: torch.Tensor, n: int, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Call:
    """x [M, K] @ W.T (+ residual) for tiles ``data`` uint8 [ceil(n / 16), K / 32, 320]. See `engine.ops.packed`."""
    return _bind_tiles(LinearQ41, "q4_1", x, data, n, residual, out)


def bind_linear_q8_0(
    x: torch.Tensor, data: torch.Tensor, n: int, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Call:
    """x [M, K] @ W.T (+ residual) for tiles ``data`` uint8 [ceil(n / 16), K / 32, 544]. See `engine.ops.packed`."""
    return _bind_tiles(LinearQ80, "q8_0", x, data, n, residual, out)


def bind_linear_f32(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Call:
    """x [M, K] @ weight [N, K].T (+ residual), all float32."""
    check.tensor("weight", weight, torch.float32, (None, None))
    return _bind(LinearF32, x, weight, weight.shape[0], weight.shape[1], residual, out)


def bind_linear_f16(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Call:
    """x [M, K] float32 @ weight [N, K] float16.T (+ residual), float32 products and sums."""
    check.tensor("weight", weight, torch.float16, (None, None))
    return _bind(LinearF16, x, weight, weight.shape[0], weight.shape[1], residual, out)


def _bind_tiles(
    record: type[_Linear],
    kind: str,
    x: torch.Tensor,
    data: torch.Tensor,
    n: int,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
) -> Call:
    check.tensor("weight tiles", data, torch.uint8, (-(-n // ROWS), None, _TILE_BYTES[kind]))
    return _bind(record, x, data, n, data.shape[1] * GROUP, residual, out)


def _bind(
    record: type[_Linear],
    x: torch.Tensor,
    weight: torch.Tensor,
    n: int,
    k: int,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
) -> Call:
    out, fields = linear_fields(x, weight, n, k, residual, out)
    return Call(record(**fields), out, (x, weight, residual))


def linear_fields(
    x: torch.Tensor,
    weight: torch.Tensor,
    n: int,
    k: int,
    residual: torch.Tensor | None,
    out: torch.Tensor | None,
) -> tuple[torch.Tensor, dict[str, int | None]]:
    """The checked output of a linear op, and the fields of LinearArgs of native/cpu/linear_args.h."""
    check.tensor("x", x, torch.float32, (None, k), contiguous=False)
    m = x.shape[0]
    out = check.output("out", out, torch.float32, (m, n))
    if residual is not None:
        check.tensor("residual", residual, torch.float32, (m, n), contiguous=False)
    return out, {
        "x": x.data_ptr(),
        "weight": weight.data_ptr(),
        "residual": None if residual is None else residual.data_ptr(),
        "out": out.data_ptr(),
        "m": m,
        "n": n,
        "k": k,
        "x_stride": x.stride(0),
        "residual_stride": 0 if residual is None else residual.stride(0),
        "out_stride": out.stride(0),
    }


class EmbeddingQ80(Args):
    OP = "embedding_q8_0_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("id_bytes", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
    )


class EmbeddingDense(Args):
    OP = "embedding_dense_cpu"
    CAPABILITY = 1
    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("id_bytes", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("weight_bytes", ctypes.c_int64),
        ("weight_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("t", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
    )


def bind_embedding_q8_0(ids: torch.Tensor, data: torch.Tensor, n: int, out: torch.Tensor | None = None) -> Call:
    """Rows of Q8_0 tiles ``data`` for ``ids`` int32/int64 [T] -> float32 [T, K]."""
    check.tensor("weight tiles", data, torch.uint8, (-(-n // ROWS), None, _TILE_BYTES["q8_0"]))
    check.tensor("ids", ids, (torch.int32, torch.int64), (None,))
    t, k = ids.shape[0], data.shape[1] * GROUP
    out = check.output("out", out, torch.float32, (t, k))
    args = EmbeddingQ80(
        ids=ids.data_ptr(),
        id_bytes=ids.element_size(),
        weight=data.data_ptr(),
        out=out.data_ptr(),
        t=t,
        n=n,
        k=k,
        out_stride=out.stride(0),
    )
    return Call(args, out, (ids, data))


def bind_embedding_dense(ids: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> Call:
    """Rows of ``weight`` float32/float16 [V, H] for ``ids`` int32/int64 [T] -> float32 [T, H]."""
    check.tensor("weight", weight, (torch.float32, torch.float16), (None, None), contiguous=False)
    check.tensor("ids", ids, (torch.int32, torch.int64), (None,))
    t, (n, k) = ids.shape[0], weight.shape
    out = check.output("out", out, torch.float32, (t, k))
    args = EmbeddingDense(
        ids=ids.data_ptr(),
        id_bytes=ids.element_size(),
        weight=weight.data_ptr(),
        weight_bytes=weight.element_size(),
        weight_stride=weight.stride(0),
        out=out.data_ptr(),
        t=t,
        n=n,
        k=k,
        out_stride=out.stride(0),
    )
    return Call(args, out, (ids, weight))
