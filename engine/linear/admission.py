"""Which projection is admitted to which kernel, at which physical width, and why not. Pure: integers in, records out.

A projection is asked for by its whole (unsharded) logical shape. The answer says what one rank stores: its logical
width, the physical width that the packed layout rounds it up to, and its kernel; or the first rule that
refused it, with what was seen and what is allowed. Nothing here looks at a tensor, an environment variable or a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InputError
from engine.linear.formats import PACK_K, PACK_N, Format, format_named

Capability = tuple[int, int]
SM70: Capability = (7, 0)


class Split(StrEnum):
    """How a projection is cut over ranks: its output columns, its k, or not at all."""

    COLUMN = "column"
    ROW = "row"
    REPLICATED = "replicated"


class LinearKernel(StrEnum):
    """The kernels of a projection, as the admission table names them."""

    DENSE = "dense"  # row-major FP16 matrix
    PACKED = "packed"  # packed layout, physical width
    SMALL_M = "small_m"  # the same layout, and a second kernel for at most 8 rows
    FP32_HEAD = "fp32_head"  # packed FP16 weights, FP32 logits


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of a model, unsharded. ``sections``: widths of fused parts, in order; they sum to ``n``.

    ``units``: how many indivisible pieces (heads) each section consists of; a rank takes whole pieces.
    """

    name: str
    n: int
    k: int
    format: str
    split: Split
    sections: tuple[int, ...] = ()
    units: tuple[int, ...] = ()
    group: int = 0
    interleaved_gate_up: bool = False

    def __post_init__(self) -> None:
        if self.n <= 0 or self.k <= 0:
            raise ValueError(f"{self.name}: shape {self.n} x {self.k}; both must be positive")
        if self.sections and sum(self.sections) != self.n:
            raise ValueError(f"{self.name}: sections {self.sections} sum to {sum(self.sections)}, not to n = {self.n}")
        if len(self.units) not in (0, len(self.sections)):
            raise ValueError(f"{self.name}: {len(self.units)} units for {len(self.sections)} sections")


@dataclass(frozen=True, slots=True)
class Admitted:
    """What one rank stores and runs. ``physical_n - logical_n`` columns are zero and are sliced off before any use."""

    projection: str
    tp: int
    logical_n: int
    physical_n: int
    k: int
    kernel: LinearKernel
    section_widths: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The first rule that said no."""

    projection: str
    tp: int
    rule: str
    seen: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.projection} at TP {self.tp}: {self.rule}: saw {self.seen}; allowed: {self.allowed}"


def round_up(width: int, multiple: int) -> int:
    """``width`` rounded up to a multiple of ``multiple``."""
    return -(-width // multiple) * multiple


@dataclass(frozen=True, slots=True)
class _Local:
    """A projection with its format, cut for one rank."""

    projection: Projection
    format: Format
    tp: int
    capability: Capability

    @property
    def n(self) -> int:
        return self.projection.n // self.tp if self.projection.split is Split.COLUMN else self.projection.n

    @property
    def k(self) -> int:
        return self.projection.k // self.tp if self.projection.split is Split.ROW else self.projection.k

    @property
    def group(self) -> int:
        return self.projection.group or self.format.groups[0]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the admission table: ``holds`` is asked in order, the first that does not hold refuses."""

    name: str
    allowed: str
    holds: Callable[[_Local], bool]
    seen: Callable[[_Local], str]


def require_admitted(projections: Iterable[Projection], tp: int, capability: Capability = SM70) -> tuple[Admitted, ...]:
    """Every projection's row. Raises ``InputError`` with the first refusal: a model is admitted whole or not at all."""
    answers = [admit(projection, tp, capability) for projection in projections]
    for answer in answers:
        if isinstance(answer, Refused):
            raise InputError(str(answer))
    return tuple(answer for answer in answers if isinstance(answer, Admitted))


def _power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _cut(local: _Local) -> int:
    return local.projection.n if local.projection.split is Split.COLUMN else local.projection.k


RULES: tuple[Rule, ...] = (
    Rule("tp is a power of two", "1, 2, 4, 8, ...", lambda x: _power_of_two(x.tp), lambda x: f"TP {x.tp}"),
    Rule(
        "capability",
        "7.0 or newer (newer cards run the same code through its PTX)",
        lambda x: x.capability >= SM70,
        lambda x: f"{x.capability[0]}.{x.capability[1]}",
    ),
    Rule(
        "tp divides the cut width",
        "a width that TP divides",
        lambda x: x.projection.split is Split.REPLICATED or _cut(x) % x.tp == 0,
        lambda x: f"{_cut(x)} % {x.tp} = {_cut(x) % x.tp}",
    ),
    Rule(
        "tp divides the heads of every section",
        "whole heads for each rank",
        lambda x: x.projection.split is not Split.COLUMN or all(units % x.tp == 0 for units in x.projection.units),
        lambda x: f"heads {x.projection.units}",
    ),
    Rule(
        "tp divides every fused section",
        "sections that TP divides one by one",
        lambda x: x.projection.split is not Split.COLUMN or all(width % x.tp == 0 for width in x.projection.sections),
        lambda x: f"sections {x.projection.sections}",
    ),
    Rule(
        "group is one of the format's",
        "see engine.linear.formats.FORMATS",
        lambda x: x.group in x.format.groups,
        lambda x: f"group {x.group}, format {x.format.name} has {x.format.groups}",
    ),
    Rule(
        "k is a multiple of the group",
        "k % group == 0",
        lambda x: x.group == 0 or x.k % x.group == 0,
        lambda x: f"k {x.k}, group {x.group}",
    ),
    Rule(
        "k is a multiple of the kernel's k-tile",
        "k % tile_k == 0",
        lambda x: x.k % x.format.tile_k == 0 and (not x.format.packed or x.k % PACK_K == 0),
        lambda x: f"k {x.k}, tile_k {x.format.tile_k}",
    ),
    Rule(
        "no padding under the interleaved gate/up layout",
        f"a local width that is a multiple of {PACK_N}",
        lambda x: not x.projection.interleaved_gate_up or x.n % PACK_N == 0,
        lambda x: f"local width {x.n}",
    ),
)
"""The admission table, in the order it is asked."""


SMALL_M_TP = 4
"""The small-M kernel is promoted at this TP alone; elsewhere its refusal is recorded as a note."""

SMALL_M_ROWS = 8
"""Rows of a product that the small-M kernel takes at most."""

FP32_HEAD_TP = (2, 4)
"""FP32 logits from packed FP16 weights are admitted at these sizes, from the opt-in flag alone."""


def admit(
    projection: Projection, tp: int, capability: Capability = SM70, *, fp32_logits: bool = False
) -> Admitted | Refused:
    """Decide one projection at one tensor-parallel size.

    ``fp32_logits`` is the opt-in flag of the head (``VLLM_SM70_DFLASH2_FP32_LOGITS``); it concerns the format
    ``fp16_head`` alone. Raises ``ValueError`` for an unknown format.
    """
    local = _Local(projection, format_named(projection.format), tp, capability)
    for rule in RULES:
        if not rule.holds(local):
            return Refused(projection.name, tp, rule.name, rule.seen(local), rule.allowed)
    kernel, notes = _kernel(local, fp32_logits)
    physical = round_up(local.n, PACK_N) if local.format.packed else local.n
    widths = (
        tuple(width // tp for width in projection.sections) if projection.split is Split.COLUMN else projection.sections
    )
    return Admitted(projection.name, tp, local.n, physical, local.k, kernel, widths, notes)


def _kernel(local: _Local, fp32_logits: bool) -> tuple[LinearKernel, tuple[str, ...]]:
    """The kernel of an admitted projection, and the reasons why a faster one was not taken."""
    if local.format.name == "fp16_head":
        if not fp32_logits:
            return LinearKernel.PACKED, ("FP16 logits: the FP32 flag is off",)
        if local.tp in FP32_HEAD_TP:
            return LinearKernel.FP32_HEAD, ()
        return LinearKernel.PACKED, (f"FP16 logits: FP32 is admitted at TP {FP32_HEAD_TP}, this is TP {local.tp}",)
    if not local.format.packed:
        return LinearKernel.DENSE, ()
    if local.format.name != "nvfp4":
        return LinearKernel.PACKED, ()
    if local.tp != SMALL_M_TP:
        return LinearKernel.PACKED, (f"small-M kernel is promoted at TP {SMALL_M_TP} alone, this is TP {local.tp}",)
    if local.k % 64 != 0:
        return LinearKernel.PACKED, (f"small-M kernel needs k % 64 == 0, k is {local.k}",)
    return LinearKernel.SMALL_M, ()


def reference_projections() -> tuple[Projection, ...]:
    """Every projection of the 27B reference model.

    Hidden 5120, MLP 17408, attention 24/4 heads of 256 with an output gate, GDN 16/48 heads of 128, vocabulary 248320.
    """
    gdn = (2048, 2048, 6144, 6144, 48, 48)  # q k v z b a
    return (
        Projection("attention qkv", 14336, 5120, "nvfp4", Split.COLUMN, sections=(12288, 1024, 1024), units=(24, 4, 4)),
        Projection("attention out", 5120, 6144, "nvfp4", Split.ROW),
        Projection("gdn in", sum(gdn), 5120, "nvfp4", Split.COLUMN, sections=gdn, units=(16, 16, 48, 48, 48, 48)),
        Projection("gdn out", 5120, 6144, "nvfp4", Split.ROW),
        Projection("mlp gate up", 34816, 5120, "nvfp4", Split.COLUMN, sections=(17408, 17408)),
        Projection("mlp down", 5120, 17408, "nvfp4", Split.ROW),
        Projection("lm head", 248320, 5120, "fp16_head", Split.COLUMN),
    )


def admission_table(
    projections: Iterable[Projection] | None = None, sizes: Iterable[int] = (1, 2, 4, 8), *, fp32_logits: bool = True
) -> list[Admitted | Refused]:
    """Every projection at every size, row by row: what a person prints and a suite checks."""
    rows = tuple(projections) if projections is not None else reference_projections()
    return [admit(projection, tp, fp32_logits=fp32_logits) for projection in rows for tp in sizes]
