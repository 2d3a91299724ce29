"""Case 44: a captured graph replayed with other values, k and p equals a call, on ordinary and rare rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.model.graphs import collector_held_off
from engine.ops import sampling as ops
from suites.oracles.judge import assert_bits_equal
from suites.sampling import rows
from suites.sampling.cutting import Settings
from suites.targets import Target, array

pytestmark = pytest.mark.group("cutoffs")

WIDTH = 151936


def _bits(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return rows.generator(44, seed).integers(-(2**63), 2**63 - 1, size=count, endpoint=True)


@pytest.mark.parametrize("batch", [1, 8])
def test_44_graph_replay(gpu: Target, batch: int) -> None:
    """Capture succeeds only if nothing waits; the replays see new numbers in the same memory, tied and bad rows too."""
    logits = gpu.put(rows.logits("ordinary", batch, WIDTH), torch.float32)
    k, p, t = Settings.same(batch, 20, 0.95).put(gpu)
    bits = gpu.put(_bits(batch, 0))
    plan = torch.empty((batch, len(ops.PlanColumn)), dtype=torch.int32, device=gpu.name)
    drawn = torch.empty(batch, dtype=torch.int64, device=gpu.name)
    ops.sampling_draw(logits, ops.sampling_plan(logits, k, p, t), bits, t)  # loads the kernels
    sample, cut = ops.bind_sampling_sample(logits, bits, k, p, t), ops.bind_sampling_cut(logits, k, p, t)
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph):
        ops.sampling_plan(logits, k, p, t, out=plan)
        ops.sampling_draw(logits, plan, bits, t, out=drawn)
        sampled = sample()
        cut()
    for step, kind in enumerate([*rows.KINDS, "ordinary"]):
        values, settings = rows.logits(kind, batch, WIDTH, seed=step), rows.mixed_settings(batch, WIDTH, seed=step)
        if step == 2:
            values[0, 5] = np.nan
        for place, fresh in zip((k, p, t), settings.put(gpu), strict=True):
            place.copy_(fresh)
        bits.copy_(gpu.put(_bits(batch, step)))
        logits.copy_(gpu.put(values, torch.float32))
        graph.replay()
        again = gpu.put(values, torch.float32)
        expected_plan = ops.sampling_plan(again, *settings.put(gpu))
        expected_drawn = ops.sampling_draw(again, expected_plan, bits, t)
        ops.sampling_apply(again, expected_plan, t)
        assert_bits_equal(array(plan), array(expected_plan), f"{kind}: plan of replay {step}")
        assert_bits_equal(array(drawn), array(expected_drawn), f"{kind}: ids of replay {step}")
        assert_bits_equal(array(sampled), array(expected_drawn), f"{kind}: ids of the bound sample in replay {step}")
        assert_bits_equal(array(logits), array(again), f"{kind}: logits of replay {step}")
