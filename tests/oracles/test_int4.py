"""NVFP4 and AWQ on words written out by hand."""

from __future__ import annotations

import numpy as np

from suites.oracles import int4


def test_e2m1_table() -> None:
    expected = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert int4.e2m1(np.arange(16, dtype=np.uint8)).tolist() == expected


def test_nvfp4_low_nibble_is_even_k_and_scales_cover_16() -> None:
    packed = np.full((1, 16), 0x72, dtype=np.uint8)  # k even: code 2 = 1.0, k odd: code 7 = 6.0
    scales = np.array([[0x38, 0x40]], dtype=np.uint8)  # 1.0 and 2.0
    weights = int4.nvfp4(packed, scales, 0.5)
    assert weights.tolist() == [[0.5, 3.0] * 8 + [1.0, 6.0] * 8]


def test_nvfp4_conventions_are_reciprocal() -> None:
    packed = np.full((1, 8), 0x22, dtype=np.uint8)
    scales = np.array([[0x38]], dtype=np.uint8)
    assert int4.nvfp4(packed, scales, 4.0, "multiply")[0, 0] == 4.0
    assert int4.nvfp4(packed, scales, 4.0, "divide")[0, 0] == 0.25


def test_awq_order() -> None:
    word = sum(nibble << (4 * nibble) for nibble in range(8))  # nibble j holds j
    columns = int4.awq_nibbles(np.array([[word]], dtype=np.uint32).view(np.int32))
    assert columns.tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_awq_subtracts_zeros_per_group_and_transposes() -> None:
    qweight = np.array([[0x77777777], [0x77777777], [0x11111111], [0x11111111]], dtype=np.int32)  # K = 4, N = 8
    qzeros = np.array([[0x22222222], [0x33333333]], dtype=np.int32)  # groups of 2
    scales = np.stack([np.full(8, 0.5), np.arange(8.0)]).astype(np.float16)
    weights = int4.awq(qweight, qzeros, scales)
    assert weights.shape == (8, 4)
    assert weights[3].tolist() == [2.5, 2.5, -6.0, -6.0]


def test_awq_top_nibble_is_unsigned() -> None:
    word = np.array([[0xF0000000]], dtype=np.uint32).view(np.int32)
    assert int4.awq_nibbles(word).tolist() == [[0, 0, 0, 0, 0, 0, 0, 15]]


def test_scales_are_misread_only_where_the_padded_width_breaks_a_pack() -> None:
    scales = np.arange(2 * 48, dtype=np.float64).reshape(2, 48)
    seen = int4.misread_scales(scales, alignment=16)
    assert seen[0].tolist() == scales[0].tolist()
    assert seen[1, :3].tolist() == [0.0, 0.0, 0.0]  # the padding of group 0, which is 64 wide as written
    assert seen[1, 16:].tolist() == scales[1, :32].tolist()
    assert int4.misread_scales(scales, alignment=32).tolist() == scales.tolist()
    hidden = np.ones((3, 24))
    assert int4.misread_scales(hidden, alignment=16).tolist() == hidden.tolist()
