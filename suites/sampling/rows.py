"""Rows of logits for the cases: seeded, and of the kinds that cutoffs go wrong on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from suites.sampling.cutting import Settings

F32 = npt.NDArray[np.float32]

WIDTHS = (1, 7, 32767, 32768, 49152, 151936, 154880, 248320)
BATCHES = (1, 2, 8, 33, 64)
KINDS = ("ordinary", "half", "coarse", "masked", "peaked", "flat", "equal")


def generator(*key: int) -> np.random.Generator:
    """A generator that depends only on the case's own numbers."""
    return np.random.default_rng([20260904, *key])


def logits(kind: str, rows: int, width: int, seed: int = 0) -> F32:
    """``rows`` rows of one kind.

    ordinary: N(0, 3), what a head gives; half: the same on fp16's grid, so with ties; coarse: seven values;
    masked: nine in ten are -inf; peaked: one token far ahead; flat: N(0, 0.01); equal: one value.
    """
    rng = generator(KINDS.index(kind), rows, width, seed)
    if kind == "equal":
        return np.full((rows, width), 1.5, dtype=np.float32)
    if kind == "coarse":
        return rng.integers(-3, 4, size=(rows, width)).astype(np.float32)
    sigma = 0.01 if kind == "flat" else 3.0
    values: F32 = (rng.standard_normal((rows, width), dtype=np.float32) * np.float32(sigma)).astype(np.float32)
    if kind == "half":
        values = values.astype(np.float16).astype(np.float32)
    if kind == "masked":
        values[rng.random((rows, width)) < 0.9] = -np.inf
        values[:, width // 2] = 1.0
    if kind == "peaked":
        values[np.arange(rows), rng.integers(0, width, size=rows)] = 40.0
    return values


def mixed_settings(rows: int, width: int, seed: int = 0) -> Settings:
    """Every row its own k, p and temperature, off and greedy rows among them."""
    rng = generator(rows, width, seed)
    ks = np.array([1, 8, 12, 16, 20, 64, 127, 512, width, 0, max(1, width - 1)])
    ps = np.array([0.6, 0.8, 0.95, 1.0, 1e-9, 0.999], dtype=np.float32)
    ts = np.array([1.0, 1.0, 0.5, 2.0, 0.7, 0.0], dtype=np.float32)
    return Settings(
        tuple(int(k) for k in rng.choice(ks, rows)),
        tuple(float(p) for p in rng.choice(ps, rows)),
        tuple(float(t) for t in rng.choice(ts, rows)),
    )
