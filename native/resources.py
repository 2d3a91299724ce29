"""What each kernel needs of a V100, and how many warps that leaves room for.

Everything here is computed from the build (ptxas figures) and the card's data sheet; nothing is measured. That a kernel
uses no instruction of a later card is ptxas's to refuse: the build assembles every image for sm_70.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from native.built import DEFAULT_OUT, read_record


@dataclass(frozen=True, slots=True)
class Card:
    """Limits of one multiprocessor and rates of the card, from its data sheet."""

    multiprocessors: int
    registers: int  # a multiprocessor
    register_unit: int  # registers are handed to a warp in units of this
    threads: int
    blocks: int
    warp_schedulers: int
    shared_bytes: int
    shared_unit: int
    shared_bytes_per_block: int  # after opting in
    bytes_per_second: float
    tensor_flops: float  # FP16 products, FP32 or FP16 sums
    fp32_flops: float


V100 = Card(
    multiprocessors=80,
    registers=65536,
    register_unit=256,
    threads=2048,
    blocks=32,
    warp_schedulers=4,
    shared_bytes=98304,
    shared_unit=256,
    shared_bytes_per_block=98304,
    bytes_per_second=900e9,
    tensor_flops=125e12,
    fp32_flops=15.7e12,
)
WARP = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps of a kernel that are resident on one multiprocessor, and what stops more."""

    blocks: int
    warps: int
    limited_by: str  # registers, shared, threads or blocks


def occupancy(threads: int, registers: int, shared_bytes: int, card: Card = V100) -> Occupancy:
    """Static occupancy of a kernel launched with ``threads`` a block.

    Args:
        threads: of a block; counted in whole warps.
        registers: of a thread.
        shared_bytes: static and dynamic, of a block.

    Raises:
        ValueError: one block does not fit.
    """
    if threads < 1 or registers < 0 or shared_bytes < 0:
        raise ValueError(
            f"saw {threads} threads, {registers} registers, {shared_bytes} shared bytes: need positive ones"
        )
    warps = -(-threads // WARP)
    per_warp = _round_up(max(1, registers) * WARP, card.register_unit)
    # A scheduler has its own quarter of the registers, and a block's warps are dealt to the schedulers in turn.
    warps_by_registers = card.registers // card.warp_schedulers // per_warp * card.warp_schedulers
    limits = {
        "threads": card.threads // (warps * WARP),
        "blocks": card.blocks,
        "registers": warps_by_registers // warps,
        "shared": card.shared_bytes // _round_up(max(1, shared_bytes), card.shared_unit),
    }
    if shared_bytes > card.shared_bytes_per_block:
        limits["shared"] = 0
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = limits[limited_by]
    if blocks == 0:
        raise ValueError(
            f"a block of {threads} threads, {registers} registers per thread and {shared_bytes} shared bytes does not "
            f"fit: too much of {limited_by}"
        )
    return Occupancy(blocks, blocks * warps, limited_by)


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One kernel: what ptxas reports (bytes unless said) and the occupancy that follows on a V100."""

    kernel: str
    image: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    dynamic_shared: int
    const: int
    max_threads: int
    blocks_per_multiprocessor: int
    warps_per_multiprocessor: int
    limited_by: str


def resource_table(out_dir: Path = DEFAULT_OUT) -> tuple[ResourceRow, ...]:
    """A row for every kernel of the build in ``out_dir``, sorted by kernel; empty where device images were not built.

    Raises:
        FileNotFoundError: there is no build record.
    """
    record = read_record(out_dir)
    if record is None:
        raise FileNotFoundError(f"no build record in {out_dir}: run python -m native.build")
    rows: list[dict[str, Any]] = sorted(record["kernels"], key=lambda row: row["kernel"])
    return tuple(_with_occupancy(row) for row in rows)


def _with_occupancy(row: dict[str, Any]) -> ResourceRow:
    seen = occupancy(row["max_threads"], row["registers"], row["static_shared"] + row["dynamic_shared"])
    return ResourceRow(
        **row,
        blocks_per_multiprocessor=seen.blocks,
        warps_per_multiprocessor=seen.warps,
        limited_by=seen.limited_by,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
