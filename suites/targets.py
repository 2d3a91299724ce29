"""The machines a case runs on, and how data gets there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from suites.oracles.arrays import F64
from suites.oracles.tolerance import FP32, MMA_STORED_FP16, Arithmetic


@dataclass(frozen=True, slots=True)
class Target:
    """A device, the dtype of activations there, and the arithmetic its kernels promise."""

    name: str
    activations: torch.dtype
    arithmetic: Arithmetic

    def put(self, values: npt.NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        """``values`` on the device; floating values as activations unless ``dtype`` says otherwise."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if dtype is None and tensor.is_floating_point():
            dtype = self.activations
        return tensor.to(device=self.name, dtype=dtype)

    def unwritten(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An output full of NaN: an element that a kernel forgets shows."""
        return torch.full(shape, float("nan"), dtype=dtype or self.activations, device=self.name)


CPU = Target("cpu", torch.float32, FP32)
CUDA = Target("cuda", torch.float16, MMA_STORED_FP16)
# The CUDA ops over CPU tensors, inside `native.cuda_bindings.launch.emulated`.
EMULATED = Target("cpu", torch.float16, MMA_STORED_FP16)


def array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's own bits as a NumPy array."""
    out: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return out


def f64(tensor: torch.Tensor) -> F64:
    """What the tensor holds, exactly, as float64."""
    out: F64 = tensor.detach().cpu().to(torch.float64).numpy()
    return out
