"""Hand-made blocks: every byte is written down here."""

from __future__ import annotations

import numpy as np
import pytest

from suites.oracles import gguf_blocks

HALF_ONE = bytes.fromhex("003c")  # 1.0 little-endian
HALF_MINUS_QUARTER = bytes.fromhex("00b4")
HALF_TWO = bytes.fromhex("0040")


def _blocks(data: bytes, rows: int, size: int) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).reshape(rows, -1, size)


def test_q4_1_low_nibbles_come_first() -> None:
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))
    weights = gguf_blocks.q4_1(_blocks(HALF_TWO + HALF_MINUS_QUARTER + nibbles, 1, 20))
    expected = [2.0 * code - 0.25 for code in [*range(16), *range(15, -1, -1)]]
    assert weights.tolist() == [expected]


def test_q4_1_rows_and_blocks_keep_their_order() -> None:
    def block(code: int) -> bytes:
        return HALF_ONE + bytes(2) + bytes([code * 17] * 16)

    weights = gguf_blocks.q4_1(_blocks(b"".join(block(code) for code in (1, 2, 3, 4)), 2, 20))
    assert weights.shape == (2, 64)
    assert weights[:, [0, 31, 32, 63]].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]


def test_q4_1_magnitude_has_no_cancellation() -> None:
    data = _blocks(HALF_TWO + HALF_MINUS_QUARTER + bytes(16), 1, 20)
    assert set(gguf_blocks.q4_1(data)[0]) == {-0.25}
    assert set(gguf_blocks.q4_1_magnitude(data)[0]) == {0.25}


def test_q8_0_codes_are_signed() -> None:
    data = HALF_TWO + np.arange(-16, 16, dtype=np.int8).tobytes()
    weights = gguf_blocks.q8_0(_blocks(data, 1, 34))
    assert weights.tolist() == [[2.0 * code for code in range(-16, 16)]]


@pytest.mark.parametrize("read", [gguf_blocks.q4_1, gguf_blocks.q8_0])
def test_a_foreign_block_size_is_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="bytes, got 18"):
        read(np.zeros((1, 1, 18), dtype=np.uint8))
