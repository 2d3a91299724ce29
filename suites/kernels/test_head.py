"""The FP32 head: logits over the tied embedding keep differences that fp16 would lose."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops import functional
from suites.kernels import inputs
from suites.oracles import dense, gguf_blocks, judge, tolerance
from suites.targets import CPU, array, f64

pytestmark = pytest.mark.group("head")

SLICE = 4096  # rows of the vocabulary that the oracle holds in fp64 at a time


def test_full_vocabulary(native_library: str) -> None:
    """All 49152 logits of SmolLM2's Q8_0 head, eight rows; the first row alone has the same bits."""
    rng = inputs.generator(8)
    blocks = inputs.q8_0_blocks(rng, inputs.VOCAB, inputs.HIDDEN)
    packed = functional.pack_q8_0(CPU.put(blocks))
    x = CPU.put(inputs.normal(rng, 8, inputs.HIDDEN))
    out = functional.linear(x, packed, out=CPU.unwritten(8, inputs.VOCAB))
    for begin in range(0, inputs.VOCAB, SLICE):
        weight = gguf_blocks.q8_0(blocks[begin : begin + SLICE])
        expected = dense.linear(f64(x), weight)
        limit = tolerance.dot(expected, dense.linear_magnitude(f64(x), weight), inputs.HIDDEN, CPU.arithmetic, extra=4)
        limit = tolerance.fixed_point(limit, f64(x), weight)
        judge.assert_within(f64(out[:, begin : begin + SLICE]), expected, limit, f"head from token {begin}")
    alone = functional.linear(x[:1], packed, out=CPU.unwritten(1, inputs.VOCAB))
    judge.assert_bits_equal(array(alone)[0], array(out)[0], "one row of eight")


def test_fp32_logits_keep_what_fp16_collapses(native_library: str) -> None:
    """x = (1, 2^-12, 0..): 64 rows with w[:,0] = 1, w[i,1] = i/64 are 64 fp32 logits and a single fp16 one."""
    weight = np.zeros((64, 32), dtype=np.float32)
    weight[:, 0], weight[:, 1] = 1.0, np.arange(64) / 64
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :2] = 1.0, 2.0**-12
    out = f64(functional.linear(CPU.put(x), CPU.put(weight), out=CPU.unwritten(1, 64)))
    exact = dense.linear(x.astype(np.float64), weight.astype(np.float64))
    judge.assert_within(out, exact, tolerance.exact(exact), "fp32 logits")
    assert np.unique(out).size == 64
    assert np.unique(out.astype(np.float16)).size == 1
