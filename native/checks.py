"""What every wrapper checks before a pointer crosses into native code, on any device; messages say what is allowed."""

from __future__ import annotations

import torch


def layout(
    name: str,
    value: torch.Tensor,
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    shape: tuple[int | None, ...],
    *,
    device: str,
    contiguous: bool,
) -> None:
    """Refuse ``value`` unless it is a tensor on ``device``, of one of ``dtypes`` and of ``shape`` (None: any length).

    ``contiguous`` False still needs a contiguous last dimension.

    Raises:
        ValueError: naming the tensor, what was seen, what is allowed.
    """
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name}: saw {type(value).__name__}, need a tensor")
    if value.device.type != device:
        raise ValueError(f"{name}: saw device {value.device}, need {device} like the other arguments")
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


def not_broadcast(name: str, value: torch.Tensor) -> None:
    """Refuse an output in which several elements share an address."""
    if value.numel() > 0 and any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True)):
        raise ValueError(f"{name}: saw strides {value.stride()}: an output may not be broadcast")


def heads_together(name: str, rows: torch.Tensor) -> None:
    """Refuse ``rows`` [tokens, heads, dim] in which the heads of a token do not lie together."""
    if rows.numel() and rows.shape[1] > 1 and rows.stride(1) != rows.shape[2]:
        raise ValueError(f"{name}: saw strides {rows.stride()}, the heads of a token must lie together")


def positive(name: str, value: float) -> None:
    """Refuse a number that is not finite and greater than zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: saw {value}, need a finite number greater than 0")
