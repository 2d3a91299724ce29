"""Embedding rows are copies: each weight decoded once, nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import inputs
from suites.oracles import dense, gguf_blocks, judge
from suites.targets import CUDA, Target, array

pytestmark = pytest.mark.group("embedding")

IDS = [[0], [99, 0, 99, 50], list(range(17))]


def _rounded(values: np.ndarray, target: Target) -> np.ndarray:
    """fp64 -> fp32 (one rounding) -> the activations of the target (one more on a GPU)."""
    single = values.astype(np.float32)
    return single if target.activations is torch.float32 else single.astype(np.float16)


@pytest.mark.parametrize("ids", IDS, ids=["one", "repeats", "run"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_q8_0_rows_are_exact(targets: tuple[Target, ...], ids: list[int], index: torch.dtype) -> None:
    blocks = inputs.q8_0_blocks(inputs.generator(len(ids)), 100, 576)
    expected = dense.embedding(np.array(ids), gguf_blocks.q8_0(blocks))
    for target in targets:
        packed = functional.pack_q8_0(target.put(blocks))
        wanted = torch.tensor(ids, dtype=index, device=target.name)
        out = functional.embedding(wanted, packed, out=target.unwritten(len(ids), 576))
        judge.assert_bits_equal(array(out), _rounded(expected, target), f"{target.name} q8_0 rows")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
def test_plain_rows_are_exact(targets: tuple[Target, ...], dtype: torch.dtype) -> None:
    weight = inputs.normal(inputs.generator(7), 100, 33)
    for target in targets:
        table = target.put(weight, dtype)
        if target is CUDA and dtype is torch.float32:  # weights on a GPU are float16
            with pytest.raises(ValueError, match=r"saw dtype torch\.float32, allowed torch\.float16"):
                functional.embedding(target.put(np.array([5])), table)
            continue
        out = functional.embedding(target.put(np.array([5, 99, 5, 0])), table, out=target.unwritten(4, 33))
        judge.assert_bits_equal(array(out), _rounded(weight[[5, 99, 5, 0]], target), f"{target.name} plain rows")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (torch.tensor([100]), "100"),
        (torch.tensor([0, -1]), "-1"),
        (torch.tensor([0.0]), "float32"),
        (torch.tensor([[0]]), "1"),
    ],
    ids=["beyond", "negative", "float", "2d"],
)
def test_wrong_ids_are_named(native_library: str, ids: torch.Tensor, said: str) -> None:
    weight = functional.pack_q8_0(torch.from_numpy(inputs.q8_0_blocks(inputs.generator(8), 100, 64)))
    with pytest.raises(ValueError, match=said):
        functional.embedding(ids, weight)
