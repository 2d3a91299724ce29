"""Occupancy against figures of NVIDIA's occupancy tables for compute capability 7.0."""

from __future__ import annotations

import pytest

from suites.oracles.sm70 import resident_warps


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "warps"),
    [
        (32, 256, 0, 64),
        (33, 256, 0, 48),  # 40 after rounding: 12 warps a partition
        (64, 256, 0, 32),
        (65, 256, 0, 24),  # 72: 7 warps a partition, 28, three blocks of 8
        (128, 256, 0, 16),
        (255, 256, 0, 8),
        (255, 512, 0, 0),  # 16 warps of 8192 registers do not fit
        (32, 32, 0, 32),  # 32 blocks of one warp
        (32, 1024, 0, 64),
        (16, 512, 97_920, 16),  # the shared memory of one block fills the SM
        (16, 512, 41_936, 32),
        (16, 512, 98_305, 0),
    ],
)
def test_resident_warps(registers: int, threads: int, shared: int, warps: int) -> None:
    assert resident_warps(registers=registers, threads=threads, shared=shared) == warps
