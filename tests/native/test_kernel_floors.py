"""The call that each kernel's floor is stated for, by hand, and a kernel that has none."""

from __future__ import annotations

import pytest

from native.kernel_floors import kernel_floor

# Bytes by hand at 900 GB/s.
CASES = {
    "paged_attention_d256_m1_f16": 2 * 32768 * 256 * 2 + 2 * 6 * 256 * 2,
    "paged_attention_d256_m3_fp8": 2 * 32768 * 256 + 2 * 8 * 6 * 256 * 2,
    "linear_f16_m1": 17408 * 5120 * 2 + 8 * 5120 * 2 + 8 * 17408 * 2,
    "sampling_scan": 8 * 151936 * 4,
    "sampling_apply": 2 * 8 * 151936 * 4,
    "paged_attention_reduce": 8 * 6 * (128 * 258 * 4 + 256 * 2),
}


@pytest.mark.parametrize("kernel", CASES)
def test_floors_by_hand(kernel: str) -> None:
    floor, call = kernel_floor(kernel)
    assert floor.bytes_moved == CASES[kernel]
    assert floor.seconds() == pytest.approx(CASES[kernel] / 900e9)
    assert floor.bound() == "memory"
    assert "prediction" in floor.label
    assert call


def test_a_kernel_without_a_call_is_named() -> None:
    with pytest.raises(ValueError, match=r"kernel no_such: .*kernel_floors"):
        kernel_floor("no_such")
