"""Every CUDA op of the native library: the functions of `engine.ops.functional`, on float16 CUDA tensors.

An op launches on torch's current stream of the tensors' device and does not synchronise; once `load` ran, ops may be
captured in a CUDA graph. Wrong arguments raise ``ValueError`` naming what was seen and what is allowed; a library that is
missing or too old, and an error of the driver, raise ``RuntimeError``.
"""

from __future__ import annotations

from native.cuda_bindings.launch import load
from native.cuda_bindings.norm import rms_norm

__all__ = [
    "load",
    "rms_norm",
]
