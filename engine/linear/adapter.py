"""From an admission row to a product that runs: weights at the physical width, results at the logical one.

The packed layout counts in 32 columns. What a rank stores is padded to that with zeros (codes, scales and zero points:
an uninitialised scale may be NaN), every buffer and every warm-up is as wide as that, and the padding is cut off before
anything else is done to the result: a bias, the parts of a fused projection, a sum over ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch

from engine.linear.admission import SMALL_M_ROWS, Admitted, LinearKernel, Projection, require_admitted
from engine.linear.fold import one_global_scale
from engine.linear.nvfp4 import Nvfp4Matrix, join
from engine.ops import bound, functional
from engine.ops.bound import Step
from engine.ops.functional import PackedInt4, PackedNvfp4, PackedQ4_1, PackedQ8_0, Weight
from engine.ops.packed import ROWS as GGUF_ROWS

_ROW_COUNTS = 96  # rows of a forward that are remembered, as many as a runner keeps programs


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """A [n, k] weight (code - zero) * scale: uint8 codes [n, k], float16 scales and uint8 zeros [n, k / group]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor


class KernelCounters:
    """Which kernels the products of a model's forwards took, and how often."""

    def __init__(self, projections: Iterable[AdaptedLinear]) -> None:
        self.ran: Counter[LinearKernel] = Counter()
        self._projections = tuple(projections)
        self._of_rows = lru_cache(_ROW_COUNTS)(self._kernels)

    def forward(self, rows: int) -> None:
        """Count one product of ``rows`` rows with each of the projections."""
        self.ran.update(self._of_rows(rows))

    def _kernels(self, rows: int) -> Counter[LinearKernel]:
        return Counter(projection.kernel(rows) for projection in self._projections)


class AdaptedLinear:
    """One projection of one rank, as it was admitted: what the decoders multiply with.

    It runs from a buffer to a buffer, so that a graph can hold it: `bind` makes the steps, `parts` says where in the
    physically wide buffer the logical results lie.
    """

    def __init__(self, admitted: Admitted, weight: Weight, bias: torch.Tensor | None = None) -> None:
        """``weight`` is ``physical_n`` wide, ``bias`` [logical_n]. Raises ``ValueError`` for other widths."""
        n, k = _shape(weight)
        if (n, k) != (admitted.physical_n, admitted.k):
            raise ValueError(
                f"{admitted.projection}: weight [{n}, {k}], admitted at physical "
                f"[{admitted.physical_n}, {admitted.k}]; allowed: that"
            )
        if bias is not None and bias.shape != (admitted.logical_n,):
            raise ValueError(
                f"{admitted.projection}: bias {tuple(bias.shape)}; allowed: the logical width {admitted.logical_n}"
            )
        self.admitted = admitted
        self.weight = weight
        self._bias = bias

    def on(self, put_weight: Callable[[Weight], Weight]) -> AdaptedLinear:
        """The same projection where ``put_weight`` puts its weight."""
        weight = put_weight(self.weight)
        bias = None if self._bias is None else self._bias.to(_device(weight))
        return AdaptedLinear(self.admitted, weight, bias)

    def buffer(self, rows: int, device: torch.device | None = None) -> torch.Tensor:
        """Where ``rows`` rows of a product go: as wide as the kernel writes, float32 on the CPU and float16 on CUDA."""
        dtype = torch.float16 if device is not None and device.type == "cuda" else torch.float32
        return torch.zeros(rows, self.admitted.physical_n, dtype=dtype, device=device)

    def bind(self, x: torch.Tensor, out: torch.Tensor, *, residual: torch.Tensor | None = None) -> list[Step]:
        """Steps of ``x`` [M, K] @ weight.T (+ bias) (+ residual) into ``out`` [M, physical_n].

        Raises ``ValueError`` for an ``out`` that is not physically wide.
        """
        self._check_out(x, out)
        steps = [self._product(x, residual, out)]
        if self._bias is not None:
            steps.append(partial(finished, out, self.admitted, self._bias))
        return steps

    def parts(self, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of ``out``: the fused parts of a product that was written there, the padding cut off."""
        return finished(out, self.admitted, None)

    def logical(self, out: torch.Tensor) -> torch.Tensor:
        """All parts side by side, [M, logical_n] of ``out``: a view whose rows are ``physical_n`` apart."""
        return out[:, : self.admitted.logical_n]

    def warm_up(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Run once at the shapes of a capture. Raises ``ValueError`` for an ``out`` that is not physically wide."""
        self.run(x, out)

    def run(self, x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`bind`, run once: views into ``out``, one for each fused part."""
        for step in self.bind(x, out):
            step()
        return self.parts(out)

    def kernel(self, rows: int) -> LinearKernel:
        """The kernel that ``rows`` rows take: the small-M one where it is promoted and they are few enough."""
        if self.admitted.kernel is LinearKernel.SMALL_M and rows > SMALL_M_ROWS:
            return LinearKernel.PACKED
        return self.admitted.kernel

    def _product(self, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor) -> Step:
        if self.kernel(len(x)) is LinearKernel.SMALL_M:
            assert isinstance(self.weight, PackedNvfp4)  # the one format that the table promotes
            return bound.linear_few_rows(x, self.weight, residual=residual, out=out)
        return bound.linear(x, self.weight, residual=residual, out=out)

    def _check_out(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if out.shape != (len(x), self.admitted.physical_n):
            raise ValueError(
                f"{self.admitted.projection}: out {tuple(out.shape)}; allowed: the physical "
                f"{(len(x), self.admitted.physical_n)}"
            )


def physical_width(projections: Iterable[AdaptedLinear], name: str) -> int:
    """How wide a buffer for the products called ``name`` is, 0 where there are none."""
    return max((one.admitted.physical_n for one in projections if one.admitted.projection == name), default=0)


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


def adapt(projection: Projection, tp: int, weight: Weight) -> AdaptedLinear:
    """A rank's share ``weight`` of a projection of any format but NVFP4, at its logical width.

    ``projection`` is the whole one; its format is read off ``weight``. Raises ``InputError`` where ``tp`` ranks cannot
    have it, ``ValueError`` for other rows than the rank's.
    """
    (admitted,) = require_admitted([replace(projection, format=weight_format(weight), group=0)], tp)
    _check_rows(admitted, _shape(weight)[0])
    return AdaptedLinear(admitted, _widened(weight, admitted.physical_n))


def weight_format(weight: Weight) -> str:
    """What `engine.linear.formats` calls the format of ``weight``."""
    if isinstance(weight, torch.Tensor):
        return "fp16" if weight.dtype == torch.float16 else "fp32"
    return _FORMATS[type(weight)]


_FORMATS: dict[type, str] = {
    PackedQ4_1: "gguf_q4_1",
    PackedQ8_0: "gguf_q8_0",
    PackedInt4: "awq_int4",
    PackedNvfp4: "nvfp4",
}


def _widened(weight: Weight, physical: int) -> Weight:
    """``weight`` with outputs of zeros up to ``physical``; row-major matrices have no padding."""
    if isinstance(weight, PackedQ4_1 | PackedQ8_0):
        missing = physical // GGUF_ROWS - len(weight.data)
        data = weight.data
        if missing:  # a copy out of the memory that the loader chose: only where it must be
            data = torch.cat([data, data.new_zeros(missing, *data.shape[1:])])
        return replace(weight, data=data, n=physical)
    return weight if isinstance(weight, torch.Tensor) else replace(weight, n=physical)


def _shape(weight: Weight) -> tuple[int, int]:
    return (len(weight), weight.shape[1]) if isinstance(weight, torch.Tensor) else (weight.n, weight.k)


def _device(weight: Weight) -> torch.device:
    if isinstance(weight, torch.Tensor):
        return weight.device
    return weight.data.device if isinstance(weight, PackedQ4_1 | PackedQ8_0) else weight.codes.device


def padded_rows(rows: torch.Tensor, physical: int) -> torch.Tensor:
    """``rows`` [n, ...] with rows of zeros after them, up to ``physical``."""
    out = rows.new_zeros(physical, *rows.shape[1:])
    out[: len(rows)] = rows
    return out


def _check_rows(admitted: Admitted, rows: int) -> None:
    if rows != admitted.logical_n:
        raise ValueError(f"{admitted.projection}: {rows} rows; allowed: the rank's {admitted.logical_n}")
