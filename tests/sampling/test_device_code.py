"""The sampling kernels' device code, run on the CPU by the emulation, against the CPU ops: the same bits.

This shows the logic of the kernels where there is no GPU: indices, barriers, the last block's work, every task of the
finish kernel. The order in which threads run between barriers is varied, so that a missing barrier changes a result.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from native import emulation
from native.bindings import sampling as cpu
from native.cuda_bindings import launch
from native.cuda_bindings import sampling as device
from suites.oracles.judge import assert_bits_equal
from suites.sampling import rows
from suites.sampling.cutting import Settings
from suites.targets import CPU

ORDERS = {"ascending": 0, "descending": 1, "shuffled": 7}


@pytest.fixture(scope="module")
def emulated_library() -> Path:
    return emulation.build()


def _compare(logits: torch.Tensor, settings: Settings, library: Path, order: int) -> None:
    count, width = logits.shape
    k, p, t = settings.put(CPU)
    rng = rows.generator(count, width)
    bits = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, size=count))
    tokens = torch.from_numpy(rng.integers(0, width, size=count))
    excluded = torch.from_numpy(rng.integers(-1, width, size=count))
    plan = cpu.bind_sampling_plan(logits, k, p, t)()
    cut = cpu.bind_sampling_apply(logits.clone(), plan, t)()
    drawn = cpu.bind_sampling_draw(logits, plan, bits, t)()
    expected = {
        "plan": plan,
        "cut": cut,
        "plan and cut": cut,
        "bound cut": cut,
        "sample's plan": plan,
        "sample": drawn,
        "bound sample": drawn,
        "bound sample again": drawn,
        "draw": drawn,
        "draw without one": cpu.bind_sampling_draw(logits, plan, bits, t, excluded)(),
        "weigh": cpu.bind_sampling_weigh(logits, plan, tokens, t)(),
        "masses": cpu.bind_sampling_masses(logits, plan, t)(),
    }
    with launch.emulated(library, order):
        both, bound = logits.clone(), logits.clone()
        device.sampling_cut(both, k, p, t)
        device.bind_sampling_cut(bound, k, p, t)()
        sampled_plan, sampled = device.sampling_sample(logits, bits, k, p, t)
        sample = device.bind_sampling_sample(logits, bits, k, p, t)
        seen = {
            "plan": device.sampling_plan(logits, k, p, t),
            "cut": device.sampling_apply(logits.clone(), plan, t),
            "plan and cut": both,
            "bound cut": bound,
            "sample's plan": sampled_plan,
            "sample": sampled,
            "bound sample": sample().clone(),
            "bound sample again": sample(),
            "draw": device.sampling_draw(logits, plan, bits, t),
            "draw without one": device.sampling_draw(logits, plan, bits, t, excluded=excluded),
            "weigh": device.sampling_weigh(logits, plan, tokens, t),
            "masses": device.sampling_masses(logits, plan, t),
        }
    for name, tensor in expected.items():
        assert_bits_equal(seen[name].numpy(), tensor.numpy(), name)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [1, 129, 5003])
def test_mixed_rows(emulated_library: Path, width: int, order: str) -> None:
    """Every kind of row with its own k, p and temperature; off and greedy rows; NaN, +inf and nothing finite."""
    logits = np.concatenate([rows.logits(kind, 2, width, seed=i) for i, kind in enumerate(rows.KINDS)])
    logits[1, 0], logits[3, -1], logits[5] = np.nan, np.inf, -np.inf
    settings = rows.mixed_settings(len(logits), width, seed=width)
    _compare(torch.from_numpy(logits), settings, emulated_library, ORDERS[order])


# Rows that end in each task of the finish kernel, wide enough for several slices and chunks.
TASKS = {
    "cut where the plan reaches": ("ordinary", 20, 0.95),
    "edge in a few bins": ("ordinary", 0, 0.9),
    "edge in narrow bins": ("flat", 0, 0.5),
    "edge in the first bin": ("peaked", 0, 0.9),
    "edge behind masked entries": ("masked", 0, 0.99),
    "k-th among more candidates than fit": ("coarse", 40, 0.95),
    "tie located in its slice": ("equal", 20, 0.6),
    "large k in a bin": ("half", 9000, 0.7),
    "large k without top-p": ("half", 9000, 1.0),
    "large k, edge far ahead of it": ("ordinary", 9000, 0.3),
    "large k beyond the finite": ("masked", 9000, 0.7),
    "few values by digits": ("coarse", 0, 0.8),
    "large k among few values by digits": ("coarse", 9000, 0.8),
    "all equal by digits": ("equal", 0, 0.6),
    "all equal and all kept": ("equal", 0, 0.9999999),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task(emulated_library: Path, task: str) -> None:
    kind, top_k, top_p = TASKS[task]
    logits = torch.from_numpy(rows.logits(kind, 2, 33001))
    _compare(logits, Settings.same(2, top_k, top_p), emulated_library, ORDERS["shuffled"])


@pytest.mark.parametrize("kind", ["ordinary", "half", "flat", "peaked"])
@pytest.mark.parametrize("top_k", [0, 700])
def test_top_p_on_and_beside_an_edge(emulated_library: Path, kind: str, top_k: int) -> None:
    """The bins are approximate, the edge is not: top-p at the share of mass before an entry, and one step to each side,
    for entries from the first to the last."""
    row = torch.from_numpy(rows.logits(kind, 1, 5003, seed=3))
    k = torch.full((1,), top_k, dtype=torch.int32)
    masses = cpu.bind_sampling_masses(row, cpu.bind_sampling_plan(row, k)())()[0]
    reached = torch.cumsum(masses.sort(descending=True).values, 0).tolist()
    ranks = np.unique(np.geomspace(1, top_k or len(reached) - 1, 7).astype(int)) - 1
    at = np.array([reached[rank] / reached[-1] for rank in ranks], dtype=np.float32)
    shares = np.concatenate([at, np.nextafter(at, np.float32(0)), np.nextafter(at, np.float32(1))])
    shares = shares[(shares > 0) & (shares <= 1)]
    settings = Settings((top_k,) * len(shares), tuple(map(float, shares)), (1.0,) * len(shares))
    _compare(row.repeat(len(shares), 1), settings, emulated_library, ORDERS["descending"])


def test_strided_rows(emulated_library: Path) -> None:
    """Rows that start on no 16-byte boundary are read one by one, with the same result."""
    wide = torch.full((3, 5010), 7.0)
    wide[:, 1:5004] = torch.from_numpy(rows.logits("half", 3, 5003))
    _compare(wide[:, 1:5004], rows.mixed_settings(3, 5003, seed=1), emulated_library, ORDERS["descending"])


def test_a_walk_by_digits_starts_at_the_bound_of_the_plan(emulated_library: Path) -> None:
    """More candidates above the bound than fit, after chunks below it were masked with a value above everything."""
    rng = rows.generator(3000)
    logits = torch.full((2, 33001), -5.0)
    logits[:, 3000:6000] = torch.from_numpy(rng.standard_normal((2, 3000), dtype=np.float32))
    logits[:, 100:20000:900] = -3.0
    settings = Settings.same(2, 40, 0.7)
    k, p, t = settings.put(CPU)
    plan = cpu.bind_sampling_plan(logits, k, p, t)()
    expected = cpu.bind_sampling_apply(logits.clone(), plan, t, 99.0)()
    with launch.emulated(emulated_library, ORDERS["shuffled"]):
        device.sampling_cut(logits, k, p, t, mask_value=99.0)
    assert_bits_equal(logits.numpy(), expected.numpy(), "cut by digits")


def test_another_workspace_is_refused(emulated_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "WORKSPACE_ROW_BYTES", 1024)
    with launch.emulated(emulated_library), pytest.raises(RuntimeError, match=r"workspace of 1024 bytes.*rebuild"):
        device.sampling_plan(torch.zeros(1, 8), torch.ones(1, dtype=torch.int32))
