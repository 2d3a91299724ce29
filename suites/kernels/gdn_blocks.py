"""Calls of the delta rule and their judge, for the device code and for its CPU twin alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from native import ops_cuda
from suites.kernels import inputs
from suites.oracles import gdn, judge, tolerance
from suites.targets import Target, array, f64

Kernel = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Block:
    """Tensors of one call over sequences of given lengths; states of every slot start as noise."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor
    initial_slots: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor

    def run(self, kernel: Kernel, out: torch.Tensor) -> torch.Tensor:
        """One launch."""
        return kernel(
            self.q,
            self.k,
            self.v,
            self.log_decay,
            self.beta,
            self.state,
            self.initial_slots,
            self.slots,
            self.query_start,
            out=out,
        )


def block_of(
    target: Target,
    lengths: tuple[int, ...],
    initial: list[int],
    slots: list[int],
    *,
    heads: tuple[int, int] = (1, 3),
    dims: tuple[int, int] = (32, 16),
) -> Block:
    tokens, states = sum(lengths), max([*initial, *slots]) + 2
    rng = inputs.generator(tokens, *heads, *dims)
    decay = -np.exp(rng.uniform(-4, 0, size=(tokens, heads[1]))).astype(np.float32)
    return Block(
        target.put(inputs.normal(rng, tokens, heads[0], dims[0])),
        target.put(inputs.normal(rng, tokens, heads[0], dims[0])),
        target.put(inputs.normal(rng, tokens, heads[1], dims[1])),
        target.put(decay, torch.float32),
        target.put(rng.uniform(0.05, 0.95, size=(tokens, heads[1])).astype(np.float32), torch.float32),
        target.put(inputs.normal(rng, states, heads[1], dims[1], dims[0]), torch.float32),
        target.put(np.array(initial, dtype=np.int32)),
        target.put(np.array(slots, dtype=np.int32)),
        inputs.query_start(target, lengths),
    )


def judge_block(target: Target, block: Block, kernel: Kernel) -> None:
    """Outputs and every state slot against the oracle, sequence by sequence; untouched slots keep their bits."""
    before = f64(block.state)
    out = block.run(kernel, target.unwritten(*block.v.shape))
    ops_cuda.raise_on_fault(out.device)
    after, actual = f64(block.state), f64(out)
    starts, initial, slots = (array(t).tolist() for t in (block.query_start, block.initial_slots, block.slots))
    written: set[int] = set()
    for sequence, first in enumerate(initial):
        rows = slice(starts[sequence], starts[sequence + 1])
        if first == -1:
            assert not actual[rows].any(), "rows of a padded sequence are zero"
            continue
        q, k, v, decay, beta = (f64(t)[rows] for t in (block.q, block.k, block.v, block.log_decay, block.beta))
        expected, states = gdn.recurrence(q, k, v, decay, beta, before[first])
        limits = tolerance.delta_rule(expected, states, before[first], v, q.shape[-1], target.arithmetic)
        judge.assert_within(actual[rows], expected, limits[0], f"sequence {sequence} out")
        for token, slot in enumerate(slots[rows]):
            if slot >= 0:
                written.add(slot)
                # States are stored in fp32 whatever the activations.
                limit = tolerance.Tolerance(limits[1].limit[token], limits[1].source)
                judge.assert_within(after[slot], states[token], limit, f"sequence {sequence} state {token}")
    untouched = [slot for slot in range(before.shape[0]) if slot not in written]
    assert np.array_equal(after[untouched], before[untouched]), "a slot that nobody names changed"
