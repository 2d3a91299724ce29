"""What every CUDA op checks before a pointer crosses into native code; messages say what was seen and is allowed."""

from __future__ import annotations

import torch

from native.checks import heads_together, layout, not_broadcast, positive
from native.cuda_bindings import launch

__all__ = ["INT_MAX", "aligned", "heads_together", "output", "positive", "tensor"]

INT_MAX = 2**31 - 1


def tensor(
    name: str,
    value: torch.Tensor,
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    *,
    like: torch.Tensor | None = None,
    contiguous: bool = True,
) -> None:
    """Refuse ``value`` unless it is a device tensor of one of ``dtypes`` and of ``shape`` (None: any length).

    ``contiguous`` False still needs a contiguous last dimension. ``like``: a tensor whose device it must share.

    Raises:
        ValueError: naming the tensor, what was seen, what is allowed.
    """
    layout(name, value, dtypes, shape, device=launch.device_type(), contiguous=contiguous)
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: saw device {value.device}, need {like.device} like the other arguments")
    if any(length > INT_MAX for length in value.shape):
        raise ValueError(f"{name}: saw shape {tuple(value.shape)}, a dimension may have at most {INT_MAX} elements")


def output(
    name: str,
    value: torch.Tensor | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    like: torch.Tensor,
    *,
    contiguous: bool = False,
) -> torch.Tensor:
    """``value`` once it is checked, or a new tensor on the device of ``like`` where it is None."""
    if value is None:
        return torch.empty(shape, dtype=dtype, device=like.device)
    tensor(name, value, dtype, shape, like=like, contiguous=contiguous)
    not_broadcast(name, value)
    return value


def aligned(name: str, value: torch.Tensor, elements: int) -> None:
    """Refuse a tensor whose start, or any stride but the last, is not a multiple of ``elements`` elements."""
    step = elements * value.element_size()
    if value.data_ptr() % step:
        raise ValueError(f"{name}: saw address {value.data_ptr():#x}, need a multiple of {step} bytes")
    if any(stride % elements for stride in value.stride()[:-1]):
        raise ValueError(f"{name}: saw strides {value.stride()}, all but the last must be multiples of {elements}")
