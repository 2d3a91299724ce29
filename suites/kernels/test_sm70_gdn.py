"""Gated DeltaNet of the device code: convolution, gates, recurrence, chunked prefill, gated norm, state slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from native import ops_cuda
from suites.kernels import inputs
from suites.kernels.gdn_blocks import Kernel, block_of, judge_block
from suites.oracles import gdn, judge, tolerance
from suites.oracles.arrays import F64
from suites.targets import CUDA, Target, array, f64

pytestmark = pytest.mark.group("sm70 gdn")

EPS = 1e-6


@pytest.mark.parametrize(
    ("heads", "dims"), [((1, 3), (32, 16)), ((2, 2), (64, 64)), ((1, 1), (128, 128))], ids=["r3", "r1", "d128"]
)
def test_recurrence_keeps_one_state_a_position(sm70: Target, heads: tuple[int, int], dims: tuple[int, int]) -> None:
    """Two sequences of 8 drafted positions in permuted slots, and a padded one between them."""
    slots = [9, 3, 12, 5, 0, 7, 1, 14, -1, -1, 2, -1, 4, 13, 6, 10, 8, 11]
    judge_block(sm70, block_of(sm70, (8, 2, 8), [15, -1, 2], slots, heads=heads, dims=dims), ops_cuda.gdn_recurrent)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_chunked_prefill(sm70: Target, length: int) -> None:
    """Chunks of 64 with a ragged end; only the last token's state is kept."""
    judge_block(sm70, block_of(sm70, (length,), [1], [-1] * (length - 1) + [0]), ops_cuda.gdn_chunk)


def test_chunked_prefill_of_several_sequences(sm70: Target) -> None:
    lengths = (70, 3, 64)
    slots = [slot for length, last in zip(lengths, (4, 5, 6), strict=True) for slot in [-1] * (length - 1) + [last]]
    judge_block(sm70, block_of(sm70, lengths, [0, -1, 2], [*slots[:72], -1, *slots[73:]]), ops_cuda.gdn_chunk)


@pytest.mark.parametrize("accepted", [1, 3, 8])
def test_a_round_continues_from_the_accepted_position(sm70: Target, accepted: int) -> None:
    """Eight drafted tokens, then a round that starts from slot[accepted - 1]: the bits of never having drafted more."""
    block = block_of(sm70, (8,), [8], list(range(8)))
    block.run(ops_cuda.gdn_recurrent, sm70.unwritten(*block.v.shape))
    following = replace(
        block, initial_slots=sm70.put(np.array([accepted - 1], dtype=np.int32)), slots=block.slots * 0 - 1
    )
    continued = array(following.run(ops_cuda.gdn_recurrent, sm70.unwritten(*block.v.shape)))

    straight = block_of(sm70, (8,), [8], list(range(8)))
    prefix = replace(
        straight,
        **{name: getattr(straight, name)[:accepted] for name in ("q", "k", "v", "log_decay", "beta")},
        slots=sm70.put(np.array([-1] * (accepted - 1) + [0], dtype=np.int32)),
        query_start=inputs.query_start(sm70, (accepted,)),
    )
    prefix.run(ops_cuda.gdn_recurrent, sm70.unwritten(*prefix.v.shape))
    again = replace(straight, initial_slots=sm70.put(np.array([0], dtype=np.int32)), slots=straight.slots * 0 - 1)
    expected = array(again.run(ops_cuda.gdn_recurrent, sm70.unwritten(*block.v.shape)))
    judge.assert_bits_equal(continued, expected, f"after {accepted} accepted")


@pytest.mark.parametrize("kernel", [ops_cuda.gdn_recurrent, ops_cuda.gdn_chunk], ids=["recurrent", "chunk"])
def test_six_launches(sm70: Target, kernel: Kernel) -> None:
    results = []
    for _ in range(6):
        block = block_of(sm70, (65,), [0], [-1] * 64 + [1])
        out = block.run(kernel, sm70.unwritten(*block.v.shape))
        results.append((array(out), array(block.state)))
    for launch, (outputs, states) in enumerate(results[1:], start=2):
        judge.assert_bits_equal(outputs, results[0][0], f"launch {launch} out")
        judge.assert_bits_equal(states, results[0][1], f"launch {launch} state")


def test_convolution_and_its_states(sm70: Target) -> None:
    """Four taps and SiLU in fp32; states are copies of inputs and so exact, one a position, PAD unwritten."""
    rng = inputs.generator(12)
    channels, lengths = 40, (6, 2, 3)
    x, weight = inputs.normal(rng, sum(lengths), channels), inputs.normal(rng, channels, 4)
    state = inputs.normal(rng, 9, 3, channels)
    initial, slots = [8, -1, 3], [0, 1, -1, 2, 4, 5, -1, -1, 6, -1, 7]
    on_device = sm70.put(state)
    out = ops_cuda.gdn_conv(
        sm70.put(x),
        sm70.put(weight, torch.float32),
        on_device,
        sm70.put(np.array(initial, dtype=np.int32)),
        sm70.put(np.array(slots, dtype=np.int32)),
        inputs.query_start(sm70, lengths),
        out=sm70.unwritten(sum(lengths), channels),
    )
    ops_cuda.raise_on_fault(out.device)
    kept = state.astype(np.float64)
    begin = 0
    for length, first in zip(lengths, initial, strict=True):
        rows = slice(begin, begin + length)
        begin += length
        if first == -1:
            assert not array(out[rows]).any()
            continue
        wide_x, wide_weight, start = (part.astype(np.float64) for part in (x[rows], weight, state[first]))
        expected, states = gdn.causal_conv(wide_x, wide_weight, start)
        taps = np.concatenate([start, wide_x])
        magnitude = sum(np.abs(taps[i : i + length] * wide_weight[:, i]) for i in range(4))
        # The sum is off by gamma(4) of its magnitude; SiLU has a slope of at most 1.1 and its own 2-ulp exp.
        unit = sm70.arithmetic.accumulate
        error = 1.1 * tolerance.gamma(4, unit) * magnitude + tolerance.gamma(8, unit) * np.abs(expected)
        limit = tolerance.cast(tolerance.Tolerance(error, "conv + silu"), expected, 2.0**-11, 2.0**-25)
        judge.assert_within(f64(out)[rows], expected, limit, "conv")
        for token, slot in enumerate(slots[rows]):
            if slot >= 0:
                kept[slot] = states[token]
    judge.assert_within(f64(on_device), kept, tolerance.exact(kept), "conv states")


def test_gates(sm70: Target) -> None:
    """Softplus over its whole range, linear above 20; both gates in fp32."""
    a = np.linspace(-30, 30, 121).astype(np.float16).astype(np.float32)[:, None].repeat(3, axis=1)
    b = a[::-1].copy()
    a_log, dt_bias = np.array([-2.0, 0.0, 1.5]), np.array([0.0, 0.5, -1.0])
    decay, beta = ops_cuda.gdn_gates(
        sm70.put(a), sm70.put(b), sm70.put(a_log, torch.float32), sm70.put(dt_bias, torch.float32)
    )
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = gdn.gates(wide_a, wide_b, a_log, dt_bias)
    unit = 2.0**-24
    # exp and log1p within 2 ulp each, one sum in front: relative 12u, and the sum's own error through a slope of 1.
    decay_error = 12 * unit * np.abs(expected[0]) + np.exp(a_log) * unit * (np.abs(wide_a) + np.abs(dt_bias))
    # log(1 + exp(x)) with the sum rounded before the log: absolute u for small x.
    decay_error = decay_error + np.exp(a_log) * unit
    judge.assert_within(f64(decay), expected[0], tolerance.Tolerance(decay_error, "2-ulp exp and log1p"), "decay")
    beta_limit = tolerance.Tolerance(8 * unit * expected[1] + 2.0**-126, "2-ulp exp, sum, quotient")
    judge.assert_within(f64(beta), expected[1], beta_limit, "beta")


def test_gated_norm_comes_before_the_gate(sm70: Target) -> None:
    rng = inputs.generator(13)
    dim = 128 if sm70 is CUDA else 48
    x, z, weight = inputs.normal(rng, 5, 3, dim), inputs.normal(rng, 5, 3, dim, sigma=3.0), inputs.normal(rng, dim)
    out = ops_cuda.gdn_gated_rms_norm(
        sm70.put(x), sm70.put(z), sm70.put(weight, torch.float32), EPS, out=sm70.unwritten(5, 3, dim)
    )
    wide: list[F64] = [part.astype(np.float64) for part in (x, z, weight)]
    expected = gdn.gated_rms_norm(wide[0], wide[1], wide[2], EPS)
    unit = sm70.arithmetic.accumulate
    relative = tolerance.gamma(dim + 3, unit) / 2 + 8 * unit + tolerance.gamma(8, unit)
    bound = tolerance.Tolerance(relative * np.abs(expected), "rms_norm and silu_mul together")
    judge.assert_within(f64(out), expected, tolerance.cast(bound, expected, 2.0**-11, 2.0**-25), "gated norm")


@pytest.mark.parametrize(("slots", "said"), [([0, 99], "99"), ([0, -2], "-2")], ids=["beyond", "negative"])
def test_a_slot_that_does_not_exist_is_reported(sm70: Target, slots: list[int], said: str) -> None:
    block = block_of(sm70, (2,), [0], [0, 1])
    block = replace(block, slots=sm70.put(np.array(slots, dtype=np.int32)))
    block.run(ops_cuda.gdn_recurrent, sm70.unwritten(*block.v.shape))
    with pytest.raises(ValueError, match=said):
        ops_cuda.raise_on_fault(block.state.device)
