"""What each kernel needs of a V100, and what that allows: occupancy, the floor of its time, and instructions it lacks.

Everything here is computed from the build (ptxas figures, PTX text) and the card's data sheet; nothing is measured. A
floor is a prediction: no run can be faster, a run may be slower.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from native.build import DEFAULT_OUT, read_record


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
            f"a block of {threads} threads, {registers} registers a thread and {shared_bytes} shared bytes does not "
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


# PTX that a card of compute capability 7.0 does not have: pattern -> since when.
LATER_INSTRUCTIONS = {
    r"\bcp\.async": "8.0",
    r"\bldmatrix": "7.5",
    r"\bstmatrix": "9.0",
    r"\bmbarrier": "8.0",
    r"\bwgmma": "9.0",
    r"\bredux\.": "8.0",
    r"\bcp\.reduce": "9.0",
    r"\bgriddepcontrol": "9.0",
    r"\bbarrier\.cluster": "9.0",
    r"\btcgen05": "10.0",
    r"\.bf16(?:x2)?\b": "8.0",
    r"\.tf32\b": "8.0",
    r"\.e4m3(?:x2)?\b": "8.9",
    r"\.e5m2(?:x2)?\b": "8.9",
    r"\btanh\.approx": "7.5",
    r"\bex2\.approx(?:\.ftz)?\.f16": "7.5",
    r"\bmma\.sync\.aligned\.m(?!8n8k4\b)\d+n\d+k\d+": "7.5",
}
_TARGET = re.compile(r"^\.target\s+(\S+)", re.MULTILINE)


def foreign_instructions(ptx: str) -> tuple[str, ...]:
    """Lines of a PTX text with something a V100 lacks, each with the capability it needs; and a wrong target.

    ptxas refuses most of these too; this names them, and covers the PTX that is never assembled here.
    """
    found = []
    target = _TARGET.search(ptx)
    if target is None or target[1] not in ("sm_70", "compute_70"):
        found.append(f"target {target[1] if target else 'missing'}, need sm_70")
    for number, line in enumerate(ptx.splitlines(), start=1):
        code = line.split("//", 1)[0]
        found.extend(
            f"line {number}: {code.strip()} (needs {since})"
            for pattern, since in LATER_INSTRUCTIONS.items()
            if re.search(pattern, code)
        )
    return tuple(found)


def check_images(out_dir: Path = DEFAULT_OUT) -> dict[str, tuple[str, ...]]:
    """`foreign_instructions` of every device image in ``out_dir``, by image; images without any are left out."""
    found = {path.stem: foreign_instructions(path.read_text()) for path in sorted((out_dir / "device").glob("*.ptx"))}
    return {name: lines for name, lines in found.items() if lines}


def as_rows(table: tuple[ResourceRow, ...]) -> list[dict[str, Any]]:
    """The table as plain dictionaries."""
    return [asdict(row) for row in table]


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
