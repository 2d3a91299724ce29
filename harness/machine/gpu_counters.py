"""Clocks, power, heat and throttle reasons of GPUs, from NVML. Without NVML there are no GPU samples."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons. Idle clocks and clocks set by a person are no throttling.
THROTTLE_BITS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
_SM_CLOCK, _MEMORY_CLOCK, _TEMPERATURE = 1, 2, 0


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at one card; ``None``: this card or driver does not tell.

    MHz, watts, degrees Celsius, per cent of time a kernel ran, MiB in use; ``throttle``: why clocks are held down now.
    """

    uuid: str
    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    busy_percent: int | None
    used_mib: int | None
    throttle: tuple[str, ...]


class GpuReader:
    """Looks at some cards again and again; closes NVML at the end. No card: no NVML."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        if not uuids:
            return
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return
        self._nvml = nvml
        for uuid in uuids:
            try:
                self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError:  # the card fell off the bus, or is another container's
                continue

    def __enter__(self) -> GpuReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def read(self) -> tuple[GpuSample, ...]:
        """One sample a card."""
        return tuple(self._look(uuid, handle) for uuid, handle in self._handles.items())

    def _look(self, uuid: str, handle: Any) -> GpuSample:
        nvml = self._nvml

        def ask(query: Callable[[], Any]) -> Any:
            try:
                return query()
            except nvml.NVMLError:  # not every card tells everything
                return None

        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        bits = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return GpuSample(
            uuid,
            ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK)),
            ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK)),
            None if power is None else power / 1000,
            ask(lambda: nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE)),
            None if busy is None else int(busy.gpu),
            None if memory is None else int(memory.used) >> 20,
            throttle_names(bits or 0),
        )


def throttle_names(bits: int) -> tuple[str, ...]:
    """The reasons that hold clocks down, in words."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)
