"""Quantised weights in the layout the CPU kernels read, and the way back to float32.

Both formats are cut into tiles of 16 output rows x 32 inputs, one tile after another along k, so that a kernel that
owns 16 rows walks one contiguous stream. Inside a tile the 16 rows are the lanes of a vector: one 32-bit word per row.

Q4_1 tile, 320 bytes: four word rows [4][16] u32, then 16 scales and 16 minima (float16).
    Word w of a row holds k = 8w .. 8w+7; nibble i and nibble i+4 hold k = 8w+2i and 8w+2i+1 (i = 0..3), so one
    shift and one mask give a pair of 16-bit integers. Weight = scale * code + minimum.
Q8_0 tile, 544 bytes: eight word rows [8][16] u32, then 16 scales (float16).
    Word w of a row holds k = 4w .. 4w+3 in bytes 0, 2, 1, 3, each stored as code + 128. Weight = scale * code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.ops.weight_memory import weight_memory

ROWS = 16  # output rows of a tile: the lanes of the widest vector
GROUP = 32  # inputs that share one scale
Q4_1_BLOCK_BYTES = 20  # GGUF: float16 scale, float16 minimum, 16 bytes of nibbles
Q8_0_BLOCK_BYTES = 34  # GGUF: float16 scale, 32 signed bytes

_Q4_CODE_BYTES = 256
_Q8_CODE_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class PackedQ4_1:  # noqa: N801 - the format's own name
    """A [n, k] weight of 4-bit codes with a scale and a minimum for each 32 inputs.

    ``data`` is uint8 [ceil(n / 16), k / 32, 320], contiguous. Rows from n up to the next multiple of 16 are zero.
    """

    TILE_BYTES: ClassVar[int] = _Q4_CODE_BYTES + 4 * ROWS

    data: torch.Tensor
    n: int
    k: int

    @property
    def scales(self) -> torch.Tensor:
        """float16 [n, k / 32] (a copy)."""
        return _tile_halves(self.data, _Q4_CODE_BYTES, self.n)

    @property
    def mins(self) -> torch.Tensor:
        """float16 [n, k / 32] (a copy)."""
        return _tile_halves(self.data, _Q4_CODE_BYTES + 2 * ROWS, self.n)

    @property
    def codes(self) -> torch.Tensor:
        """uint8 [n, k], values 0..15 (a copy)."""
        return self._codes_of(self.data)[: self.n]

    def _codes_of(self, data: torch.Tensor) -> torch.Tensor:
        panels, groups, _ = data.shape
        pairs = data[..., :_Q4_CODE_BYTES].reshape(panels, groups, 4, ROWS, 4)  # bytes of a word: low | high nibble
        nibbles = torch.stack((pairs & 15, pairs >> 4), dim=-1).reshape(panels, groups, 4, ROWS, 2, 4)  # [half, pair]
        by_row = nibbles.permute(0, 3, 1, 2, 5, 4)  # panel, row, group, word, pair, half
        return by_row.reshape(panels * ROWS, groups * GROUP)

    def dequantize(self) -> torch.Tensor:
        """float32 [n, k]: scale * code, then + minimum, each rounded once."""
        return self.dequantize_rows(torch.arange(self.n, device=self.data.device))

    def dequantize_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [len(rows), k] for int64 ``rows`` in 0..n-1."""
        codes = self.codes[rows].float().view(-1, self.k // GROUP, GROUP)
        weights = codes * self.scales[rows].float().unsqueeze(-1) + self.mins[rows].float().unsqueeze(-1)
        return weights.view(-1, self.k)


@dataclass(frozen=True, slots=True, eq=False)
class PackedQ8_0:  # noqa: N801 - the format's own name
    """A [n, k] weight of signed 8-bit codes with a scale for each 32 inputs.

    ``data`` is uint8 [ceil(n / 16), k / 32, 544], contiguous. Rows from n up to the next multiple of 16 are zero.
    """

    TILE_BYTES: ClassVar[int] = _Q8_CODE_BYTES + 2 * ROWS

    data: torch.Tensor
    n: int
    k: int

    @property
    def scales(self) -> torch.Tensor:
        """float16 [n, k / 32] (a copy)."""
        return _tile_halves(self.data, _Q8_CODE_BYTES, self.n)

    def dequantize(self) -> torch.Tensor:
        """float32 [n, k]: scale * code, rounded once."""
        return self.dequantize_rows(torch.arange(self.n, device=self.data.device))

    def dequantize_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [len(rows), k] for int64 ``rows`` in 0..n-1; reads only the tiles those rows lie in."""
        panel, lane = rows // ROWS, rows % ROWS
        groups = self.k // GROUP
        words = self.data[..., :_Q8_CODE_BYTES].view(-1, groups, 8, ROWS, 4)
        stored = words[panel, :, :, lane]  # rows, group, word, byte
        codes = stored[..., [0, 2, 1, 3]].reshape(-1, groups, GROUP).float() - 128.0
        halves = self.data[..., _Q8_CODE_BYTES:].view(-1, groups, ROWS, 2)[panel, :, lane]
        scales = halves.contiguous().view(torch.float16).float()  # rows, group, 1
        return (codes * scales).view(-1, self.k)


def pack_q4_1(blocks: torch.Tensor) -> PackedQ4_1:
    """Lay GGUF Q4_1 blocks out for the kernels.

    ``blocks`` is uint8 [n, k / 32, 20]: the bytes of the file, a row of blocks an output row.

    Raises:
        ValueError: wrong dtype or shape.
    """
    _check_blocks(blocks, Q4_1_BLOCK_BYTES, "Q4_1")
    n, groups, _ = blocks.shape
    data = _empty_tiles(blocks, PackedQ4_1.TILE_BYTES)
    panels = data.shape[0]
    padded = _pad_rows(blocks, panels)
    eight = padded[..., 4:].contiguous().view(torch.int64)  # [rows, group, 2]: eight bytes, two codes in each
    # GGUF: k < 16 in the low nibbles, the rest in the high ones.
    words = torch.cat((_nibble_words(eight), _nibble_words(eight >> 4)), dim=-1)  # [rows, group, word]
    tiles = data.view(torch.int32)[..., : _Q4_CODE_BYTES // 4].view(panels, groups, 4, ROWS)
    tiles.copy_(words.view(panels, ROWS, groups, 4).permute(0, 2, 3, 1))
    data[..., _Q4_CODE_BYTES : _Q4_CODE_BYTES + 2 * ROWS] = _rows_to_tile(padded[..., 0:2], panels)
    data[..., _Q4_CODE_BYTES + 2 * ROWS :] = _rows_to_tile(padded[..., 2:4], panels)
    return PackedQ4_1(data, n, groups * GROUP)


def _nibble_words(eight: torch.Tensor) -> torch.Tensor:
    """Codes k0..k7 in the low nibbles of an int64's bytes -> int32 word of bytes k0|k2, k4|k6, k1|k3, k5|k7.

    All on whole words: byte by byte this took most of the time that a model needs to load.
    """
    codes = eight & 0x0F0F0F0F0F0F0F0F
    pairs = codes | codes >> 12  # byte j: code j, and code j + 2 above it
    word = pairs & 0xFF | pairs >> 24 & 0xFF00 | (pairs & 0xFF00) << 8 | (pairs >> 16 & 0xFF000000)
    return word.to(torch.int32)  # keeps the low 32 bits


def pack_q8_0(blocks: torch.Tensor) -> PackedQ8_0:
    """Lay GGUF Q8_0 blocks out for the kernels.

    ``blocks`` is uint8 [n, k / 32, 34]: the bytes of the file, a row of blocks an output row.

    Raises:
        ValueError: wrong dtype or shape.
    """
    _check_blocks(blocks, Q8_0_BLOCK_BYTES, "Q8_0")
    n, groups, _ = blocks.shape
    data = _empty_tiles(blocks, PackedQ8_0.TILE_BYTES)
    panels = data.shape[0]
    padded = _pad_rows(blocks, panels)
    words = _q8_words(padded[..., 2:].contiguous().view(torch.int32))
    tiles = data.view(torch.int32)[..., : _Q8_CODE_BYTES // 4].view(panels, groups, 8, ROWS)
    tiles.copy_(words.view(panels, ROWS, groups, 8).permute(0, 2, 3, 1))
    data[..., _Q8_CODE_BYTES:] = _rows_to_tile(padded[..., 0:2], panels)
    return PackedQ8_0(data, n, groups * GROUP)


def _q8_words(four: torch.Tensor) -> torch.Tensor:
    """int32 words of signed bytes k0 k1 k2 k3 -> words of k0 k2 k1 k3, 128 added to each; on whole words here too."""
    swapped = four & -0xFFFF01 | (four >> 8 & 0xFF00) | (four & 0xFF00) << 8
    return swapped ^ -0x7F7F7F80  # 0x80808080


def _check_blocks(blocks: torch.Tensor, block_bytes: int, name: str) -> None:
    if blocks.dtype != torch.uint8 or blocks.dim() != 3 or blocks.shape[2] != block_bytes:
        raise ValueError(
            f"{name} blocks: saw {blocks.dtype} {tuple(blocks.shape)}, need torch.uint8 [n, k / 32, {block_bytes}]"
        )
    if blocks.shape[0] == 0 or blocks.shape[1] == 0:
        raise ValueError(f"{name} blocks: saw an empty weight {tuple(blocks.shape)}, need n >= 1 and k >= 32")


def _empty_tiles(blocks: torch.Tensor, tile_bytes: int) -> torch.Tensor:
    shape = -(-blocks.shape[0] // ROWS), blocks.shape[1], tile_bytes
    if blocks.device.type != "cpu":
        return torch.empty(shape, dtype=torch.uint8, device=blocks.device)
    return weight_memory.empty(math.prod(shape)).view(shape)


def _pad_rows(blocks: torch.Tensor, panels: int) -> torch.Tensor:
    missing = panels * ROWS - blocks.shape[0]
    if missing == 0:
        return blocks.contiguous()
    return torch.cat((blocks, blocks.new_zeros(missing, *blocks.shape[1:])))


def _rows_to_tile(halves: torch.Tensor, panels: int) -> torch.Tensor:
    """[panels * 16, groups, 2] bytes -> [panels, groups, 32]."""
    groups = halves.shape[1]
    return halves.reshape(panels, ROWS, groups, 2).permute(0, 2, 1, 3).reshape(panels, groups, 2 * ROWS)


def _tile_halves(data: torch.Tensor, start: int, n: int) -> torch.Tensor:
    """Float16 numbers of a tile's tail: [panels, groups, bytes] -> [n, groups]."""
    halves = data[..., start : start + 2 * ROWS].contiguous().view(torch.float16)  # panel, group, row
    return halves.permute(0, 2, 1).reshape(-1, data.shape[1])[:n]
