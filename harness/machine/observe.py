"""What is held and watched while a scope runs: the lease, and the machine's telemetry, both into the scope's folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.files import json_bytes, write_atomic
from harness.machine.gpus import Gpu
from harness.machine.lease import Lease, LeaseLost
from harness.machine.telemetry import read_samples, sampling
from harness.machine.witness import witness
from harness.rundir import read_json

LEASE_FILE = "lease.json"
TELEMETRY_FILE = "telemetry.jsonl"
TIMED_SCOPES = ("latency",)
"""Scopes that take times: where there is no GPU, they lease the CPU."""


@dataclass(frozen=True)
class Watch:
    """What a run holds and looks at; the default holds nothing and looks at the CPU."""

    lease: Lease | None = None
    gpus: Sequence[Gpu] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Locks that the measured process inherits."""
        return () if self.lease is None else tuple(self.lease.descriptors.values())

    @contextlib.contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        """Record the lease, and sample the machine, while the block runs."""
        if self.lease is not None:
            write_atomic(folder / LEASE_FILE, json_bytes(self.lease.record.json()))
        uuids = [gpu.uuid for gpu in self.gpus]
        with sampling(folder / TELEMETRY_FILE, watch=os.getpid(), gpus=uuids):
            yield

    def lost(self) -> str:
        """Why the lease is ours no more; empty while it is."""
        try:
            if self.lease is not None:
                self.lease.check()
        except LeaseLost as error:
            return str(error)
        return ""


def wanted_resources(scopes: Sequence[str], gpus: Sequence[Gpu]) -> tuple[Sequence[Gpu], bool]:
    """What these scopes lease: the visible GPUs; without one, the CPU, if any of the scopes takes times."""
    return gpus, not gpus and any(scope in TIMED_SCOPES for scope in scopes)


def machine_doubts(folder: Path, timed: bool, processors: float = 0.0) -> tuple[str, ...]:
    """What the machine's counters say against a scope's times; nothing for a scope without times.

    Of ``processors`` that the scope could use, others may have as many as it never used at once.
    """
    path = folder / TELEMETRY_FILE
    if not timed or not path.exists():
        return ()
    samples = read_samples(path)
    busiest = max((sample.cpu.own or 0.0 for sample in samples), default=0.0)
    return tuple(f"while it ran, {doubt}" for doubt in witness(samples, max(0.0, processors - busiest)).doubts)


def machine_notes(folder: Path, timed: bool) -> list[str]:
    """What lacks so that the times of a scope could be trusted; nothing for a scope without times."""
    if not timed:
        return []
    notes = []
    if not (folder / LEASE_FILE).exists():
        notes.append("its times were taken without a lease: nothing kept others off the machine")
    elif str(read_json(folder / LEASE_FILE).get("foreign", "none")).startswith("not known"):
        notes.append("other processes on its GPUs could not be seen")
    path = folder / TELEMETRY_FILE
    samples = read_samples(path) if path.exists() else []
    if not samples:
        notes.append("the machine was not watched meanwhile (no telemetry)")
    return notes
