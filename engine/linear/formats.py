"""Weight formats as data: what each one needs of a shape. No torch.

Sources of the numbers: the packed SM70 layout stores 32 output columns by 8 k per atom, so N is a multiple of 32 and
nothing smaller (4120 rounded up to 16 gives 4128, which happens to be 32 * 129; 8240 is 16 * 515 and stays wrong).
"""

from __future__ import annotations

from dataclasses import dataclass

PACK_N = 32
"""Output columns of one packed atom: the alignment of a physical width."""

PACK_K = 8
"""k of one packed atom."""


@dataclass(frozen=True, slots=True)
class Format:
    """One weight format.

    ``groups``: the k-lengths that one scale may cover (``0``: no scales). ``tile_k``: the smallest k-tile that its
    kernel iterates in; k is a multiple of it. ``packed``: stored in the packed layout (physical width) or row-major.
    """

    name: str
    groups: tuple[int, ...]
    tile_k: int
    packed: bool

    def __post_init__(self) -> None:
        if not self.groups or any(group < 0 for group in self.groups):
            raise ValueError(f"format {self.name}: groups {self.groups} must be one or more lengths >= 0")


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("fp32", groups=(0,), tile_k=1, packed=False),
        Format("fp16", groups=(0,), tile_k=16, packed=False),
        Format("fp16_head", groups=(0,), tile_k=16, packed=True),
        Format("awq_int4", groups=(32, 64, 128), tile_k=16, packed=True),
        Format("gguf_q4_1", groups=(32,), tile_k=32, packed=True),
        Format("gguf_q8_0", groups=(32,), tile_k=32, packed=True),
        Format("nvfp4", groups=(16,), tile_k=16, packed=True),
    )
}


def format_named(name: str) -> Format:
    """The format called ``name``; ``ValueError`` names the ones there are."""
    if name not in FORMATS:
        raise ValueError(f"weight format {name!r} is not known; allowed: {', '.join(sorted(FORMATS))}")
    return FORMATS[name]
