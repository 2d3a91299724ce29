"""What every CPU op checks before a pointer crosses into native code; messages say what was seen and is allowed."""

from __future__ import annotations

import torch

from native.checks import heads_together, layout, not_broadcast, positive

__all__ = ["heads_together", "output", "positive", "tensor"]


def tensor(
    name: str,
    value: torch.Tensor,
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    *,
    contiguous: bool = True,
) -> None:
    """Refuse ``value`` unless it is a CPU tensor of one of ``dtypes`` and of ``shape`` (None: any length).

    ``contiguous`` False still needs a contiguous last dimension.

    Raises:
        ValueError: naming the tensor, what was seen, what is allowed.
    """
    layout(name, value, dtypes, shape, device="cpu", contiguous=contiguous)
    if value.data_ptr() % value.element_size():
        raise ValueError(f"{name}: saw address {value.data_ptr():#x}, need a multiple of {value.element_size()}")


def output(
    name: str, value: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...], *, contiguous: bool = False
) -> torch.Tensor:
    """``value`` once it is checked, or a new tensor where it is None."""
    if value is None:
        return torch.empty(shape, dtype=dtype)
    tensor(name, value, dtype, shape, contiguous=contiguous)
    not_broadcast(name, value)
    return value
