"""The SM70 packing of 4-bit weights: where every nibble goes, padding, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from native.cuda_bindings import packed
from suites.oracles import int4


def test_every_lane_owns_one_column() -> None:
    columns = packed.lane_columns()
    assert sorted(columns.tolist()) == list(range(32))
    # Lane 0 is row 0 of quad pair 0, lane 16 row 4; lane 4 starts quad pair 1.
    assert [columns[lane].item() for lane in (0, 3, 16, 4, 31)] == [0, 3, 4, 8, 31]


def test_one_code_lies_in_one_nibble() -> None:
    """Input 8 w + 2 i + h of a column is nibble i + 4 h of word w of its lane."""
    n, k = 64, 64
    lane_of = {int(column): lane for lane, column in enumerate(packed.lane_columns())}
    for column, x in ((0, 0), (5, 13), (40, 38), (63, 63)):
        codes = torch.zeros(n, k, dtype=torch.uint8)
        codes[column, x] = 15
        tiles = packed.pack_int4(codes, torch.ones(n, 2).half(), torch.zeros(n, 2, dtype=torch.uint8)).codes
        words = tiles.numpy().view("<u4")  # tile, chunk, lane, word
        word, rest = divmod(x % 32, 8)
        nibble = rest // 2 + 4 * (rest % 2)
        expected = np.zeros_like(words)
        expected[column // 32, x // 32, lane_of[column % 32], word] = 15 << (4 * nibble)
        assert np.array_equal(words, expected)


@pytest.mark.parametrize(("n", "padded"), [(1, 32), (32, 32), (24, 32), (48, 64), (4120, 4128), (8240, 8256)])
def test_columns_are_padded_to_32_with_zeros(n: int, padded: int) -> None:
    codes = torch.full((n, 32), 7, dtype=torch.uint8)
    weight = packed.pack_int4(codes, torch.ones(n, 1).half(), torch.full((n, 1), 8, dtype=torch.uint8))
    assert weight.padded_n == padded
    assert weight.dequantize().shape == (n, 32)
    by_lane = weight.codes[-1, 0].any(dim=-1)  # lanes of the last tile that hold anything
    assert int(by_lane.sum()) == n - (padded - 32)
    assert not weight.params[-1, 0, 32 - (padded - n) :].any()


@pytest.mark.parametrize(("n", "k", "group"), [(8, 64, 32), (40, 128, 64), (64, 256, 128)])
def test_awq_decodes_as_its_definition(n: int, k: int, group: int) -> None:
    rng = np.random.default_rng(n)
    qweight, qzeros = (rng.integers(-(2**31), 2**31, size=(rows, n // 8), dtype=np.int64) for rows in (k, k // group))
    scales = rng.uniform(0.001, 0.02, size=(k // group, n)).astype(np.float16)
    words = qweight.astype(np.int32), qzeros.astype(np.int32)
    weight = packed.pack_awq(torch.from_numpy(words[0]), torch.from_numpy(words[1]), torch.from_numpy(scales))
    expected = int4.awq(*words, scales)
    assert np.array_equal(weight.dequantize().numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("convention", ["multiply", "divide"])
def test_nvfp4_decodes_as_its_definition(convention: str) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, size=(24, 48), dtype=np.uint8)
    scales = rng.integers(0, 0x7F, size=(24, 6), dtype=np.uint8)
    weight = packed.pack_nvfp4(torch.from_numpy(codes), torch.from_numpy(scales), 0.25, convention)  # type: ignore[arg-type]
    expected = int4.nvfp4(codes, scales, 0.25, convention)  # type: ignore[arg-type]
    assert np.array_equal(weight.dequantize().numpy(), expected)  # 0.25 rounds nothing
    assert weight.padded_n == 32


CODES = torch.zeros(4, 64, dtype=torch.uint8)
SCALES = torch.ones(4, 2).half()
ZEROS = torch.zeros(4, 2, dtype=torch.uint8)
HALF_CODES = torch.zeros(4, 32, dtype=torch.uint8)
BLOCK_SCALES = torch.zeros(4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("codes", "scales", "zeros", "said"),
    [
        (CODES[:, :48], SCALES, ZEROS, "k = 48, need a multiple of 32"),
        (CODES.int(), SCALES, ZEROS, "torch.int32"),
        (CODES + 16, SCALES, ZEROS, "saw 16, allowed are 0..15"),
        (CODES, SCALES.float(), ZEROS, "torch.float32"),
        (CODES, torch.ones(4, 4).half(), ZEROS, "group a multiple of 32"),
        (CODES, SCALES, ZEROS + 16, "in 0..15"),
    ],
    ids=["k", "dtype", "code", "scales", "group", "zero"],
)
def test_wrong_int4_is_named(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        packed.pack_int4(codes, scales, zeros)


@pytest.mark.parametrize(
    ("codes", "scales", "factor", "convention", "said"),
    [
        (HALF_CODES.int(), BLOCK_SCALES, 1.0, "multiply", "torch.int32"),
        (HALF_CODES, BLOCK_SCALES[:, :3], 1.0, "multiply", "need torch.float8_e4m3fn"),
        (HALF_CODES, BLOCK_SCALES + 0x80, 1.0, "multiply", "negative or NaN block scale"),
        (HALF_CODES, BLOCK_SCALES, 0.0, "multiply", "saw 0.0"),
        (HALF_CODES, BLOCK_SCALES, 1.0, "guess", "saw 'guess', allowed are 'multiply' and 'divide'"),
    ],
    ids=["dtype", "scales", "negative", "global", "convention"],
)
def test_wrong_nvfp4_is_named(
    codes: torch.Tensor, scales: torch.Tensor, factor: float, convention: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        packed.pack_nvfp4(codes, scales, factor, convention)  # type: ignore[arg-type]


def test_awq_shapes_that_do_not_fit_are_named() -> None:
    words = torch.zeros(64, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="AWQ: saw qweight \\(64, 4\\)"):
        packed.pack_awq(words, words[:2, :3], torch.zeros(2, 32).half())
