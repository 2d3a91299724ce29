"""SwiGLU and embedding look-up on CUDA."""

from __future__ import annotations

from ctypes import c_int, c_int64

import torch

from native.cuda_bindings import check, faults, launch

_Q8_0_TILE_BYTES, _TILE_ROWS, _GROUP = 544, 16, 32


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """SwiGLU: silu(gate) * up, in float32 with one rounding.

    Args:
        gate_up: float16 [M, 2 I], gate in the first half of a row and up in the second; rows may be strided.
        out: float16 [M, I].
    """
    check.tensor("gate_up", gate_up, torch.float16, (None, None), contiguous=False)
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up: saw {both} columns, need an even number (gate | up)")
    out = check.output("out", out, torch.float16, (rows, both // 2), gate_up)
    if out.numel() == 0:
        return out
    strides = c_int64(gate_up.stride(0)), c_int64(out.stride(0))
    arguments = (gate_up, strides[0], out, strides[1], c_int64(rows), c_int(both // 2))
    launch.run("silu_mul", 1, gate_up.device, arguments)
    return out


def embedding_dense(ids: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows ``ids`` of the embedding; an id that is no row gives zeros and is raised by `faults.raise_on_fault`.

    Args:
        ids: int32 or int64 [T].
        weight: float16 [V, H], rows may be strided.
        out: float16 [T, H].
    """
    check.tensor("ids", ids, (torch.int32, torch.int64), (None,))
    check.tensor("weight", weight, torch.float16, (None, None), like=ids, contiguous=False)
    rows, width = weight.shape
    out = check.output("out", out, torch.float16, (ids.shape[0], width), ids)
    if out.numel() == 0:
        return out
    wide = c_int(ids.dtype == torch.int64)
    table = (weight, c_int64(weight.stride(0)), c_int64(rows))
    arguments = (ids, wide, c_int64(ids.shape[0]), *table, out, c_int64(out.stride(0)), c_int(width))
    launch.run("embedding_dense", 1, ids.device, (*arguments, faults.buffer(ids.device)))
    return out


def embedding_q8_0(ids: torch.Tensor, data: torch.Tensor, n: int, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """`embedding_dense` over the tiles of ``engine.ops.PackedQ8_0``: ``data`` uint8 [ceil(n / 16), H / 32, 544].

    Scale times code is rounded once, to float16.
    """
    check.tensor("ids", ids, (torch.int32, torch.int64), (None,))
    check.tensor("weight.data", data, torch.uint8, (-(-n // _TILE_ROWS), None, _Q8_0_TILE_BYTES), like=ids)
    width = data.shape[1] * _GROUP
    out = check.output("out", out, torch.float16, (ids.shape[0], width), ids)
    if out.numel() == 0:
        return out
    wide = c_int(ids.dtype == torch.int64)
    arguments = (ids, wide, c_int64(ids.shape[0]), data, c_int64(n), out, c_int64(out.stride(0)), c_int(width))
    launch.run("embedding_q8_0", 1, ids.device, (*arguments, faults.buffer(ids.device)))
    return out
