"""How many CUDA devices this process sees, asked of the driver: torch would take seconds to say so."""

from __future__ import annotations

import ctypes


def count() -> int:
    """CUDA devices, as CUDA_VISIBLE_DEVICES leaves them; 0 without a driver. Not for a process that forks later."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    number = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value if found else 0
