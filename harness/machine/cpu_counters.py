"""Counters of the CPU from ``/proc`` and ``/sys``, as rates since the last look. Without them all is unknown."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class CpuSample:
    """One look. ``None``: not told here.

    In processors' worth of time (2.0 on two busy cores): ``own``, the watched process and its descendants; ``others``,
    everything else that ran; ``steal``, time another machine took. ``switched_out``: how often a second our own
    processes lost a processor they still wanted. ``pressure``: share of the last ten seconds in which somebody waited
    for a processor.
    """

    mhz: float | None
    load1: float | None
    own: float | None
    others: float | None
    steal: float | None
    context_switches: float | None
    switched_out: float | None
    pressure: float | None


@dataclass(frozen=True, slots=True)
class _Counters:
    at: float
    ticks: dict[str, int]
    switches: int
    own_ticks: int
    own_switched_out: int


class CpuReader:
    """Looks at the counters again and again; ``proc`` and ``sysfs`` can be another tree in tests."""

    def __init__(
        self,
        watch: int,
        proc: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        clock: Callable[[], float] = time.monotonic,
        hertz: int | None = None,
    ) -> None:
        self._watch = watch
        self._proc = proc
        self._sysfs = sysfs
        self._clock = clock
        self._hertz = hertz or os.sysconf("SC_CLK_TCK")
        self._last = self._counters()

    def read(self) -> CpuSample:
        """Rates since the call before, and what holds now."""
        now, before = self._counters(), self._last
        self._last = now
        seconds = now.at - before.at
        load = read_text(self._proc / "loadavg").split()
        return CpuSample(
            mhz=self._mhz(),
            load1=float(load[0]) if load else None,
            **self._shares(before, now, seconds),
            context_switches=_rate(before.switches, now.switches, seconds),
            switched_out=_rate(before.own_switched_out, now.own_switched_out, seconds),
            pressure=self._pressure(),
        )

    def _shares(self, before: _Counters, now: _Counters, seconds: float) -> dict[str, float | None]:
        if not before.ticks or not now.ticks or seconds <= 0:
            return {"own": None, "others": None, "steal": None}
        spent = {name: now.ticks[name] - before.ticks[name] for name in _TICKS}
        busy = sum(spent[name] for name in ("user", "nice", "system", "irq", "softirq"))
        own = max(0, now.own_ticks - before.own_ticks)
        unit = self._hertz * seconds
        return {
            "own": round(own / unit, 3),
            "others": round(max(0, busy - own) / unit, 3),
            "steal": round(spent["steal"] / unit, 3),
        }

    def _counters(self) -> _Counters:
        stat = read_text(self._proc / "stat")
        first = stat.split("\n", 1)[0].split()
        ticks = dict(zip(_TICKS, map(int, first[1:9]), strict=True)) if len(first) >= 9 else {}
        switches = re.search(r"^ctxt (\d+)$", stat, re.MULTILINE)
        own_ticks = own_switched_out = 0
        for pid in self._family(self._watch):
            fields = read_text(self._proc / str(pid) / "stat").rpartition(")")[2].split()
            # Own time, and that of children who ended and were waited for: so nothing is lost when a child goes.
            own_ticks += sum(map(int, fields[11:15])) if len(fields) > 14 else 0
            status = read_text(self._proc / str(pid) / "status")
            out = re.search(r"^nonvoluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)
            own_switched_out += int(out[1]) if out else 0
        return _Counters(self._clock(), ticks, int(switches[1]) if switches else -1, own_ticks, own_switched_out)

    def _family(self, pid: int) -> list[int]:
        """``pid`` and its descendants, as the kernel knows them now."""
        found = [pid]
        for task in sorted((self._proc / str(pid) / "task").glob("*")):
            for child in read_text(task / "children").split():
                found += self._family(int(child))
        return found

    def _mhz(self) -> float | None:
        """Mean frequency over the processors."""
        khz = [int(text) for path in _frequency_files(self._sysfs) if (text := read_text(path).strip()).isdigit()]
        if khz:
            return round(sum(khz) / len(khz) / 1000, 1)
        told = re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", read_text(self._proc / "cpuinfo"), re.MULTILINE)
        mhz = [float(value) for value in told]
        return round(sum(mhz) / len(mhz), 1) if mhz else None

    def _pressure(self) -> float | None:
        some = re.search(r"^some avg10=([\d.]+)", read_text(self._proc / "pressure" / "cpu"))
        return round(float(some[1]) / 100, 4) if some else None


def _frequency_files(sysfs: Path) -> list[Path]:
    return sorted((sysfs / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))


def _rate(before: int, now: int, seconds: float) -> float | None:
    if seconds <= 0 or before < 0 or now < 0:
        return None
    return round(max(0, now - before) / seconds, 1)


def read_text(path: Path) -> str:
    """A file of /proc or /sys; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:  # a process that has ended, or a kernel without this file
        return ""
