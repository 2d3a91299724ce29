"""From an admission row to a product that runs: weights at the physical width, results at the logical one.

The packed layout counts in 32 columns. What a rank stores is padded to that with zeros (codes, scales and zero points:
an uninitialised scale may be NaN), every buffer and every warm-up is as wide as that, and the padding is cut off before
anything else is done to the result: a bias, the parts of a fused projection, a sum over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.linear.admission import SMALL_M_ROWS, Admitted, LinearKernel
from engine.linear.fold import one_global_scale
from engine.linear.nvfp4 import Nvfp4Matrix, join
from engine.ops import functional
from engine.ops.functional import PackedInt4, PackedNvfp4


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A [n, k] weight (code - zero) * scale: uint8 codes [n, k], float16 scales and uint8 zeros [n, k / group]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor


@dataclass(slots=True)
class KernelCounters:
    """How often each kernel ran: a flag that is set is no evidence that something ran."""

    packed: int = 0
    small_m: int = 0


class AdaptedLinear:
    """One packed projection of one rank."""

    def __init__(
        self,
        admitted: Admitted,
        weight: PackedNvfp4 | PackedInt4,
        bias: torch.Tensor | None = None,
        counters: KernelCounters | None = None,
    ) -> None:
        """``weight`` is ``physical_n`` wide, ``bias`` [logical_n]. Raises ``ValueError`` for other widths."""
        if (weight.n, weight.k) != (admitted.physical_n, admitted.k):
            raise ValueError(
                f"{admitted.projection}: weight [{weight.n}, {weight.k}], admitted at physical "
                f"[{admitted.physical_n}, {admitted.k}]; allowed: that"
            )
        if bias is not None and bias.shape != (admitted.logical_n,):
            raise ValueError(
                f"{admitted.projection}: bias {tuple(bias.shape)}; allowed: the logical width {admitted.logical_n}"
            )
        self.admitted = admitted
        self.counters = counters or KernelCounters()
        self._weight = weight
        self._bias = bias

    def buffer(self, rows: int, device: torch.device | None = None) -> torch.Tensor:
        """Where ``rows`` rows of a product go: as wide as the kernel writes, float32 on the CPU and float16 on CUDA."""
        dtype = torch.float16 if device is not None and device.type == "cuda" else torch.float32
        return torch.zeros(rows, self.admitted.physical_n, dtype=dtype, device=device)

    def warm_up(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run once at the shapes of a capture. Raises ``ValueError`` for an ``out`` that is not physically wide."""
        if out.shape != (len(x), self.admitted.physical_n):
            raise ValueError(
                f"warm-up of {self.admitted.projection}: out {tuple(out.shape)}; allowed: the physical "
                f"{(len(x), self.admitted.physical_n)}"
            )
        functional.linear(x, self._weight, out=out)

    def run(self, x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [M, K] @ weight.T + bias: views into ``out`` [M, physical_n], one for each fused part."""
        if self.kernel(len(x)) is LinearKernel.SMALL_M:
            self.counters.small_m += 1
        else:
            self.counters.packed += 1
        functional.linear(x, self._weight, out=out)
        return finished(out, self.admitted, self._bias)

    def kernel(self, rows: int) -> LinearKernel:
        """The kernel that ``rows`` rows take: the small-M one where it is promoted and they are few enough."""
        if self.admitted.kernel is LinearKernel.SMALL_M and rows <= SMALL_M_ROWS:
            return LinearKernel.SMALL_M
        return LinearKernel.PACKED


def finished(physical: torch.Tensor, admitted: Admitted, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Cut the padding off, then add the bias in place, then part the sections; views of ``physical``."""
    logical = physical[:, : admitted.logical_n]
    if bias is not None:
        logical += bias
    return torch.split(logical, list(admitted.section_widths) or [admitted.logical_n], dim=1)


def adapt_nvfp4(
    admitted: Admitted,
    parts: Sequence[Nvfp4Matrix],
    bias: torch.Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> AdaptedLinear:
    """A rank's rows of a fused NVFP4 projection, in order, for ``device`` (where the parts are, if None).

    Raises ``InputError`` for global scales that cannot be made one, ``ValueError`` for other shapes than admitted.
    """
    _check_rows(admitted, sum(len(part.codes) for part in parts))
    return AdaptedLinear(admitted, pack_parts(parts, admitted.physical_n, device), bias)


def pack_parts(parts: Sequence[Nvfp4Matrix], physical: int, device: torch.device | None = None) -> PackedNvfp4:
    """Parts of one product, stacked by row over one global scale and padded with zeros to ``physical`` rows.

    Raises ``InputError`` for global scales that cannot be made one.
    """
    whole = join(one_global_scale(parts))
    codes = padded_rows(whole.codes, physical).to(device)
    scales = padded_rows(whole.scales.view(torch.uint8), physical).view(torch.float8_e4m3fn).to(device)
    return Nvfp4Matrix(codes, scales, whole.global_scale).pack()


def adapt_int4(
    admitted: Admitted, matrix: Int4Matrix, bias: torch.Tensor | None = None, *, device: torch.device | None = None
) -> AdaptedLinear:
    """A rank's rows of an int4 projection with zero points. Raises ``ValueError`` for other shapes than admitted."""
    _check_rows(admitted, len(matrix.codes))
    rows = admitted.physical_n
    codes, scales, zeros = (padded_rows(part, rows).to(device) for part in (matrix.codes, matrix.scales, matrix.zeros))
    return AdaptedLinear(admitted, functional.pack_int4(codes, scales, zeros), bias)


def padded_rows(rows: torch.Tensor, physical: int) -> torch.Tensor:
    """``rows`` [n, ...] with rows of zeros behind them, up to ``physical``."""
    out = rows.new_zeros(physical, *rows.shape[1:])
    out[: len(rows)] = rows
    return out


def _check_rows(admitted: Admitted, rows: int) -> None:
    if rows != admitted.logical_n:
        raise ValueError(f"{admitted.projection}: {rows} rows; allowed: the rank's {admitted.logical_n}")
