"""Forced-prefix drift: two fresh processes over the same tokens, alike or with one switch changed.

A restart that changes the law of a token makes every other comparison doubtful, so the first thing to run is two
processes of one configuration: what they differ by is the floor below which no switch can be judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.diagnostics.forced import PROBS, UNUSABLE, ForcedRun, config_of, request_json
from engine.diagnostics.snapshot import Difference, first_difference
from engine.errors import InputError

F64 = npt.NDArray[np.float64]
SECONDS_ALLOWED = 600


@dataclass(frozen=True, slots=True)
class DriftReport:
    """How far apart two runs are. ``tv`` is the total variation of the next token's law after every token."""

    tokens: tuple[int, ...]
    switch: str
    tv: tuple[float, ...]
    supports_differ: tuple[int, ...]  # positions at which another set of tokens can be drawn
    difference: Difference | None  # in the order of computation

    @property
    def equal(self) -> bool:
        """Whether all is the same, bit for bit."""
        return self.difference is None and not any(self.tv)


def drift(run: ForcedRun, switch: str = "") -> DriftReport:
    """Run it twice in processes of their own, the second with ``switch``; ``""`` changes nothing (the control).

    Raises ``InputError`` for a switch that means nothing or a model that cannot be used, ``RuntimeError`` when a
    process fails.
    """
    config_of(run, switch)
    with tempfile.TemporaryDirectory() as folder:
        first, tokens = _in_a_process(run, "", Path(folder) / "one.npz")
        second, _ = _in_a_process(replace(run, tokens=tokens), switch, Path(folder) / "other.npz")
    return compare(first, second, tokens, switch)


def compare(
    one: dict[str, npt.NDArray[Any]], other: dict[str, npt.NDArray[Any]], tokens: tuple[int, ...], switch: str
) -> DriftReport:
    """The report of two runs over the same tokens."""
    left, right = one[PROBS], other[PROBS]
    tv: F64 = 0.5 * np.abs(left - right).sum(axis=1)
    supports = np.flatnonzero(((left > 0) != (right > 0)).any(axis=1))
    tensors, others = ({name: torch.from_numpy(array) for name, array in run.items()} for run in (one, other))
    return DriftReport(
        tokens=tokens,
        switch=switch,
        tv=tuple(tv.tolist()),
        supports_differ=tuple(supports.tolist()),
        difference=first_difference(tensors, others),
    )


def _in_a_process(run: ForcedRun, switch: str, out: Path) -> tuple[dict[str, npt.NDArray[Any]], tuple[int, ...]]:
    command = [sys.executable, "-m", "engine.diagnostics.forced"]
    done = subprocess.run(
        command, input=request_json(run, switch, out), capture_output=True, text=True, timeout=SECONDS_ALLOWED
    )
    if done.returncode == UNUSABLE:
        raise InputError(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    with np.load(out, allow_pickle=False) as file:
        tensors = {name: file[name] for name in file.files}
    return tensors, tuple(json.loads(done.stdout)["tokens"])
