"""Which backends a platform offers, and the name under which the KV cache is stored.

The capability is a callable, because it must not be asked where the answer cannot matter: a switched-off backend or a
machine without CUDA never queries a device.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from engine.routing.request import SM70, Capability, Platform

PLAIN_NAMES = ("auto", "float16", "bfloat16", "float32")
"""Unquantised storage: half on a GPU (a bfloat16 wish included: SM70 has none), float32 or half on the CPU twin."""

E4M3_NAMES = ("fp8_e4m3", "fp8")
"""An ``fp8`` that nobody resolved means E4M3."""

E5M2_NAMES = ("fp8_e5m2",)

KV_DTYPES = PLAIN_NAMES + E4M3_NAMES + E5M2_NAMES
"""Every name that the backend stores."""

BACKENDS_SM70 = ("FLASH_ATTN_V100", "TRITON", "FLEX", "TURBOQUANT")
BACKENDS_OTHER = ("FLASH_ATTN", "FLASHINFER", "TRITON", "FLEX", "TURBOQUANT")


class Codec(StrEnum):
    """How a stored name decodes."""

    PLAIN = "plain"
    E4M3 = "e4m3"
    E5M2 = "e5m2"


def codec_of(kv_dtype: str) -> Codec | None:
    """The codec of a resolved name, or ``None`` where the backend stores no such thing."""
    if kv_dtype in PLAIN_NAMES:
        return Codec.PLAIN
    if kv_dtype in E4M3_NAMES:
        return Codec.E4M3
    return Codec.E5M2 if kv_dtype in E5M2_NAMES else None


def sm70_backend(platform: Platform, backend: bool, capability: Callable[[], Capability]) -> bool:
    """Whether this is CUDA at exactly 7.0 with the backend on; asks ``capability`` last, and only if needed."""
    return platform is Platform.CUDA and backend and capability() == SM70


def backend_priority(platform: Platform, backend: bool, capability: Callable[[], Capability]) -> tuple[str, ...]:
    """The published order of attention backends on a platform."""
    return BACKENDS_SM70 if sm70_backend(platform, backend, capability) else BACKENDS_OTHER


def resolve_kv_dtype(
    asked: str,
    platform: Platform,
    backend: bool,
    capability: Callable[[], Capability],
    *,
    checkpoint: str | None = None,
) -> str:
    """The stored name for the option ``asked``.

    Only the alias ``fp8`` is ever rewritten, and only on SM70 with the backend on, where it means E5M2. Explicit names
    stand; ``auto`` takes what the ``checkpoint`` states, as it states it.
    """
    if asked == "auto" and checkpoint is not None:
        return checkpoint
    if asked == "fp8" and sm70_backend(platform, backend, capability):
        return "fp8_e5m2"
    return asked
