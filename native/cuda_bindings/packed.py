"""4-bit weights in the layout the SM70 kernels read, and the way back to float32.

Codes are cut into tiles of 32 output columns x 32 inputs. A tile is 32 lanes x 16 bytes: lane l owns column
8 ((l >> 2) & 3) + (l & 3) + 4 (l >> 4), the column it feeds to the tensor core, and its word w holds inputs
8w .. 8w + 7, nibbles i and i + 4 being inputs 8w + 2i and 8w + 2i + 1, so that one shift and one mask make a pair.

The number of columns is padded to a multiple of 32 with zeros (`padded_n`); the kernels write the first `n` only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

COLUMNS = 32  # of a tile: what n is padded to
CHUNK = 32  # inputs of a tile: what k must be a multiple of
NVFP4_BLOCK = 16
FEW_ROWS = 8  # of x, that the NVFP4 kernel of few rows takes at most
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble j of a word holds column order[j]
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedInt4:
    """A [n, k] weight of 4-bit codes; weight = (code - zero) * scale, a scale and zero for each ``group`` inputs.

    ``codes`` uint8 [padded_n / 32, k / 32, 32, 16]; ``params`` float16 [padded_n / 32, k / group, 32, 2]: scale, zero.
    """

    codes: torch.Tensor
    params: torch.Tensor
    n: int
    k: int
    group: int

    @property
    def padded_n(self) -> int:
        """Physical columns: n rounded up to 32."""
        return self.codes.shape[0] * COLUMNS

    def dequantize(self) -> torch.Tensor:
        """float32 [n, k]: (code - zero) * scale, rounded once."""
        codes = _unpack_codes(self.codes).float()
        params = self.params.float().permute(0, 2, 1, 3).reshape(self.padded_n, -1, 2)
        wide = params.repeat_interleave(self.group, dim=1)
        return ((codes - wide[..., 1]) * wide[..., 0])[: self.n]


@dataclass(frozen=True, slots=True, eq=False)
class PackedNvfp4:
    """A [n, k] weight of E2M1 codes; weight = E2M1(code) * E4M3(scale) * global_scale, a scale for each 16 inputs.

    ``codes`` uint8 [padded_n / 32, k / 32, 32, 16]; ``scales`` float8_e4m3fn [padded_n / 32, k / 32, 32, 2].
    """

    codes: torch.Tensor
    scales: torch.Tensor
    n: int
    k: int
    global_scale: float

    @property
    def padded_n(self) -> int:
        """Physical columns: n rounded up to 32."""
        return self.codes.shape[0] * COLUMNS

    def dequantize(self) -> torch.Tensor:
        """float32 [n, k]; E2M1 * E4M3 is exact, the global scale rounds once."""
        values = torch.tensor(E2M1, device=self.codes.device)[_unpack_codes(self.codes).long()]
        scales = self.scales.float().permute(0, 2, 1, 3).reshape(self.padded_n, self.k // NVFP4_BLOCK)
        return (values * scales.repeat_interleave(NVFP4_BLOCK, dim=1) * self.global_scale)[: self.n]


def pack_int4(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> PackedInt4:
    """Lay plain int4 codes out for the kernels.

    Args:
        codes: uint8 [n, k], values 0..15.
        scales: float16 [n, k / group]; group is 32 or a multiple of it.
        zeros: uint8 [n, k / group], values 0..15; 8 everywhere for symmetric weights.
    """
    n, k = _check_codes(codes)
    groups = scales.shape[-1] if scales.dim() == 2 else 0
    if scales.dtype != torch.float16 or scales.shape != (n, groups) or groups == 0 or k % groups or k // groups % CHUNK:
        raise ValueError(
            f"scales: saw {scales.dtype} {tuple(scales.shape)} for weights [{n}, {k}], need torch.float16 "
            f"[n, k / group] with group a multiple of {CHUNK}"
        )
    if zeros.dtype != torch.uint8 or zeros.shape != scales.shape or int(zeros.max()) > 15:
        raise ValueError(
            f"zeros: saw {zeros.dtype} {tuple(zeros.shape)}, need torch.uint8 {tuple(scales.shape)} in 0..15"
        )
    pairs = _pad_columns(torch.stack((scales, zeros.to(torch.float16)), dim=-1))
    params = pairs.view(-1, COLUMNS, groups, 2).transpose(1, 2).contiguous()
    return PackedInt4(_pack_codes(codes), params, n, k, k // groups)


def pack_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> PackedInt4:
    """Lay an AWQ checkpoint's tensors out for the kernels.

    Args:
        qweight: int32 [k, n / 8]; nibble j of a word is column 8 c + (0, 2, 4, 6, 1, 3, 5, 7)[j].
        qzeros: int32 [k / group, n / 8], the same order; used as they are (no + 1).
        scales: float16 [k / group, n].
    """
    for name, words in (("qweight", qweight), ("qzeros", qzeros)):
        if words.dtype != torch.int32 or words.dim() != 2:
            raise ValueError(f"{name}: saw {words.dtype} {tuple(words.shape)}, need torch.int32 [rows, n / 8]")
    if qweight.shape[1] != qzeros.shape[1] or scales.shape != (qzeros.shape[0], 8 * qzeros.shape[1]):
        raise ValueError(
            f"AWQ: saw qweight {tuple(qweight.shape)}, qzeros {tuple(qzeros.shape)}, scales {tuple(scales.shape)}; "
            "need [k, n/8], [k/group, n/8], [k/group, n]"
        )
    return pack_int4(_awq_nibbles(qweight).T.contiguous(), scales.T.contiguous(), _awq_nibbles(qzeros).T.contiguous())


def pack_nvfp4(
    packed: torch.Tensor,
    scales: torch.Tensor,
    global_scale: float,
    convention: Literal["multiply", "divide"],
) -> PackedNvfp4:
    """Lay an NVFP4 checkpoint's tensors out for the kernels.

    Args:
        packed: uint8 [n, k / 2]; low nibble = even input.
        scales: float8_e4m3fn (or its uint8 codes) [n, k / 16], not negative.
        global_scale: one for the whole tensor; parts that were quantised apart must be packed apart.
        convention: whether the checkpoint's global scale multiplies (ModelOpt) or divides (compressed-tensors). It
            follows from where the checkpoint came from, never from the value.
    """
    if packed.dtype != torch.uint8 or packed.dim() != 2:
        raise ValueError(f"packed: saw {packed.dtype} {tuple(packed.shape)}, need torch.uint8 [n, k / 2]")
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    n, k = _check_codes(codes)
    if scales.dtype not in (torch.float8_e4m3fn, torch.uint8) or scales.shape != (n, k // NVFP4_BLOCK):
        raise ValueError(
            f"scales: saw {scales.dtype} {tuple(scales.shape)}, need torch.float8_e4m3fn {(n, k // NVFP4_BLOCK)}"
        )
    scale_codes = scales.view(torch.uint8)
    if int(scale_codes.max()) >= 0x7F:
        raise ValueError("scales: saw a negative or NaN block scale; NVFP4 block scales are E4M3 numbers >= 0")
    if not (math.isfinite(global_scale) and global_scale > 0):
        raise ValueError(f"global_scale: saw {global_scale}, need a finite number greater than 0")
    if convention not in ("multiply", "divide"):
        raise ValueError(f"convention: saw {convention!r}, allowed are 'multiply' and 'divide'")
    tiles = _pad_columns(scale_codes).view(-1, COLUMNS, k // CHUNK, CHUNK // NVFP4_BLOCK).transpose(1, 2).contiguous()
    factor = global_scale if convention == "multiply" else 1.0 / global_scale
    return PackedNvfp4(_pack_codes(codes), tiles.view(torch.float8_e4m3fn), n, k, factor)


def check_few_rows(x: torch.Tensor) -> None:
    """Raise ``ValueError`` where ``x`` [M, K] has more rows than the kernel for few of them takes."""
    if x.shape[0] > FEW_ROWS:
        raise ValueError(f"x: saw {x.shape[0]} rows, allowed up to {FEW_ROWS} for the kernel of few rows")


def lane_columns(device: torch.device | None = None) -> torch.Tensor:
    """int64 [32]: the column of a tile that each lane owns."""
    lane = torch.arange(32, device=device)
    return 8 * (lane >> 2 & 3) + (lane & 3) + 4 * (lane >> 4)


def _check_codes(codes: torch.Tensor) -> tuple[int, int]:
    if codes.dtype != torch.uint8 or codes.dim() != 2 or codes.shape[0] == 0 or codes.shape[1] == 0:
        raise ValueError(f"codes: saw {codes.dtype} {tuple(codes.shape)}, need torch.uint8 [n, k]")
    n, k = codes.shape
    if k % CHUNK:
        raise ValueError(f"codes: saw k = {k}, need a multiple of {CHUNK}")
    if int(codes.max()) > 15:
        raise ValueError(f"codes: saw {int(codes.max())}, allowed are 0..15")
    return n, k


def _pad_columns(rows: torch.Tensor) -> torch.Tensor:
    missing = -rows.shape[0] % COLUMNS
    return torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:]))) if missing else rows.contiguous()


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [n, k] in 0..15 -> uint8 [tiles, chunks, 32 lanes, 16]."""
    k = codes.shape[1]
    words = _pad_columns(codes).view(-1, COLUMNS, k // CHUNK, 4, 4, 2)  # tile, column, chunk, word, i, parity
    parity_first = words.transpose(-1, -2)  # ..., word, parity, i
    packed = parity_first[..., 0::2] | parity_first[..., 1::2] << 4  # ..., word, parity, byte of the half word
    by_lane = packed.flatten(3)[:, lane_columns(codes.device)]  # tile, lane, chunk, 16 bytes
    return by_lane.transpose(1, 2).contiguous()


def _unpack_codes(tiles: torch.Tensor) -> torch.Tensor:
    """uint8 [tiles, chunks, 32 lanes, 16] -> uint8 [padded_n, k]."""
    count, chunks = tiles.shape[:2]
    by_column = torch.empty_like(tiles)
    by_column[:, :, lane_columns(tiles.device)] = tiles
    packed = by_column.transpose(1, 2).reshape(count, COLUMNS, chunks, 4, 2, 2)  # ..., word, parity, byte
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)  # ..., word, parity, i
    return nibbles.transpose(-1, -2).reshape(count * COLUMNS, chunks * CHUNK)


def _awq_nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 [rows, n / 8] -> uint8 [rows, n]."""
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    nibbles = (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8)
    in_order = torch.empty_like(nibbles)
    in_order[..., list(AWQ_ORDER)] = nibbles
    return in_order.flatten(1)
