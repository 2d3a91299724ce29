"""The FP32 head: logits over the tied embedding keep differences that fp16 would lose."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops import functional
from suites.kernels import inputs
from suites.oracles import dense, gguf_blocks, judge, tolerance
from suites.targets import CPU, f64

pytestmark = pytest.mark.group("head")


@pytest.mark.parametrize("rows", [1, 8])
def test_full_vocabulary(native_library: str, rows: int) -> None:
    """All 49152 logits of SmolLM2's Q8_0 head."""
    rng = inputs.generator(rows)
    blocks = inputs.q8_0_blocks(rng, inputs.VOCAB, inputs.HIDDEN)
    weight = gguf_blocks.q8_0(blocks)
    x = CPU.put(inputs.normal(rng, rows, inputs.HIDDEN))
    out = functional.linear(x, functional.pack_q8_0(CPU.put(blocks)), out=CPU.unwritten(rows, inputs.VOCAB))
    expected = dense.linear(f64(x), weight)
    limit = tolerance.dot(expected, dense.linear_magnitude(f64(x), weight), inputs.HIDDEN, CPU.arithmetic, extra=4)
    judge.assert_within(f64(out), expected, tolerance.fixed_point(limit, f64(x), weight), "cpu head")


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
