"""What every CUDA op checks before a pointer crosses into native code; messages say what was seen and is allowed."""

from __future__ import annotations

import torch

from native.cuda_bindings import launch

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
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name}: saw {type(value).__name__}, need a tensor")
    if value.device.type != launch.device_type():
        raise ValueError(f"{name}: saw device {value.device}, need {launch.device_type()} like the other arguments")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: saw device {value.device}, need {like.device} like the other arguments")
    if value.dtype not in allowed:
        raise ValueError(f"{name}: saw dtype {value.dtype}, allowed {', '.join(map(str, allowed))}")
    if value.dim() != len(shape) or any(
        want is not None and seen != want for seen, want in zip(value.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: saw shape {tuple(value.shape)}, need [{wanted}]")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{name}: saw strides {value.stride()} for shape {tuple(value.shape)}, need contiguous")
    if not contiguous and value.numel() > 0 and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name}: saw strides {value.stride()}, the last dimension must be contiguous")
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
    if any(stride == 0 and length > 1 for stride, length in zip(value.stride(), value.shape, strict=True)):
        raise ValueError(f"{name}: saw strides {value.stride()}: an output may not be broadcast")
    return value


def positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and greater than zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: saw {value}, need a finite number greater than 0")


def aligned(name: str, value: torch.Tensor, elements: int) -> None:
    """Refuse a tensor whose start, or any stride but the last, is not a multiple of ``elements`` elements."""
    step = elements * value.element_size()
    if value.data_ptr() % step:
        raise ValueError(f"{name}: saw address {value.data_ptr():#x}, need a multiple of {step} bytes")
    if any(stride % elements for stride in value.stride()[:-1]):
        raise ValueError(f"{name}: saw strides {value.stride()}, all but the last must be multiples of {elements}")
