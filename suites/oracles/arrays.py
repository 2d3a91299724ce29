"""Names for the array types that the oracles share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def f64(values: npt.ArrayLike) -> F64:
    """``values`` as float64; exact for every float16, float32 and for integers below 2**53."""
    return np.asarray(values, dtype=np.float64)
