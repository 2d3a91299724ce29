"""Occupancy by hand and against the suites' own oracle, floors by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native import floors, resources
from native.built import RECORD_NAME, SCHEMA
from suites.oracles import sm70


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limited_by"),
    [
        (256, 32, 0, 8, "threads"),  # 2048 threads a multiprocessor
        (32, 16, 0, 32, "blocks"),
        (256, 64, 0, 4, "registers"),  # 8 warps of 2048 registers: 4 blocks fill 65536
        (256, 65, 0, 3, "registers"),  # a warp takes 2304: 7 warps a scheduler, 28 in all
        (512, 128, 0, 1, "registers"),
        (256, 32, 49152, 2, "shared"),
        (256, 32, 98304, 1, "shared"),
        (33, 8, 0, 32, "threads"),  # two warps
    ],
)
def test_occupancy_by_hand(threads: int, registers: int, shared: int, blocks: int, limited_by: str) -> None:
    seen = resources.occupancy(threads, registers, shared)
    assert (seen.blocks, seen.limited_by) == (blocks, limited_by)
    assert seen.warps == blocks * -(-threads // 32)


@given(threads=st.integers(1, 1024), registers=st.integers(1, 255), shared=st.integers(0, 98304))
def test_occupancy_is_the_oracles(threads: int, registers: int, shared: int) -> None:
    expected = sm70.resident_warps(registers=registers, threads=threads, shared=shared)
    if expected == 0:
        with pytest.raises(ValueError, match="does not fit"):
            resources.occupancy(threads, registers, shared)
    else:
        assert resources.occupancy(threads, registers, shared).warps == expected


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "said"),
    [
        (256, 32, 98305, "98305 shared bytes does not fit: too much of shared"),
        (1024, 128, 0, "does not fit: too much of registers"),
        (0, 32, 0, "0 threads"),
    ],
)
def test_a_block_that_does_not_fit_is_named(threads: int, registers: int, shared: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resources.occupancy(threads, registers, shared)


def test_the_table_reads_the_record(tmp_path: Path) -> None:
    row = {
        "kernel": "k",
        "image": "i",
        "registers": 64,
        "stack": 0,
        "spill_stores": 0,
        "spill_loads": 0,
        "static_shared": 1024,
        "dynamic_shared": 40960,
        "const": 400,
        "max_threads": 256,
    }
    (tmp_path / RECORD_NAME).write_text(json.dumps({"schema": SCHEMA, "kernels": [{**row, "kernel": "z"}, row]}))
    table = resources.resource_table(tmp_path)
    assert [entry.kernel for entry in table] == ["k", "z"]
    first = table[0]
    assert (first.blocks_per_multiprocessor, first.warps_per_multiprocessor, first.limited_by) == (2, 16, "shared")


def test_without_a_record_the_table_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run python -m native.build"):
        resources.resource_table(tmp_path)


def test_a_floor_is_the_longest_of_memory_and_arithmetic() -> None:
    norm = floors.rms_norm(1000, 9000)
    assert norm.bytes_moved == 36_036_000
    assert norm.seconds() == pytest.approx(36_036_000 / 900e9)
    assert norm.bound() == "memory"
    product = floors.linear(8192, 8192, 8192, 16)
    assert product.tensor_ops == 2 * 8192**3
    assert product.seconds() == pytest.approx(2 * 8192**3 / 125e12)
    assert product.bound() == "tensor"
    assert "prediction" in product.label


def test_the_cache_is_read_once_for_all_rows_of_a_verification() -> None:
    """27B at TP4, 32768 keys in FP8: 16 MiB at 900 GB/s, whether one row or eight."""
    one, eight = (floors.paged_attention(rows, 32768, 6, 1, 256, kv_bytes=1) for rows in (1, 8))
    assert eight.bytes_moved - one.bytes_moved == 7 * 2 * 6 * 256 * 2
    assert eight.seconds() == pytest.approx(2 * 32768 * 256 / 900e9, rel=0.01)


def test_every_floor_is_positive() -> None:
    every = (
        floors.silu_mul(8, 17408),
        floors.causal_prefill(4096, 6, 1, 256),
        floors.store_kv(8, 1, 256, kv_bytes=1),
        floors.rope_store_kv(8, 6, 1, 256),
        floors.embedding(8, 5120),
        floors.candidate_logits(8, 64, 5120),
        floors.fp8_codec(1 << 20),
        floors.gdn_conv(8, 2560, states=9),
        floors.gdn_recurrent(8, 4, 12, 128, 128, states_moved=9),
        floors.gdn_chunk(4096, 4, 12, 128, 128),
        floors.gated_rms_norm(8, 12, 128),
    )
    assert all(floor.bytes_moved > 0 and floor.seconds() > 0 for floor in every)
