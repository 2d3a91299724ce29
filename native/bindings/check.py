"""What every wrapper checks before a pointer crosses into native code; messages say what was seen and is allowed."""

from __future__ import annotations

import torch


def tensor(
    name: str,
    value: torch.Tensor,
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    *,
    contiguous: bool = True,
) -> None:
    """Refuse ``value`` unless it is a CPU tensor of one of ``dtypes`` and of ``shape`` (None: any length).

    ``contiguous`` False still needs a contiguous last dimension and non-negative strides.

    Raises:
        ValueError: naming the tensor, what was seen, what is allowed.
    """
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name}: saw {type(value).__name__}, need a tensor")
    if value.device.type != "cpu":
        raise ValueError(f"{name}: saw device {value.device}, need cpu like the other arguments")
    if value.dtype not in allowed:
        raise ValueError(f"{name}: saw dtype {value.dtype}, allowed {', '.join(map(str, allowed))}")
    if value.dim() != len(shape) or any(
        want is not None and seen != want for seen, want in zip(value.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: saw shape {tuple(value.shape)}, need [{wanted}]")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{name}: saw strides {value.stride()} for shape {tuple(value.shape)}, need contiguous")
    if not contiguous and value.dim() > 0 and value.numel() > 0 and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name}: saw strides {value.stride()}, the last dimension must be contiguous")
    if value.data_ptr() % value.element_size():
        raise ValueError(f"{name}: saw address {value.data_ptr():#x}, need a multiple of {value.element_size()}")


def output(
    name: str, value: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...], *, contiguous: bool = False
) -> torch.Tensor:
    """``value`` once it is checked, or a new tensor where it is None."""
    if value is None:
        return torch.empty(shape, dtype=dtype)
    tensor(name, value, dtype, shape, contiguous=contiguous)
    if value.dim() > 1 and value.numel() > 0 and 0 in value.stride():
        broadcast = [d for d in range(value.dim()) if value.stride(d) == 0 and value.shape[d] > 1]
        if broadcast:
            raise ValueError(f"{name}: saw strides {value.stride()}: an output may not be broadcast")
    return value


def positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and greater than zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: saw {value}, need a finite number greater than 0")
