"""Rotary embedding and the KV write: rotated values against fp64, copies exact, PAD slots untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.ops import functional
from suites.kernels import inputs
from suites.oracles import judge, rope, tolerance
from suites.targets import CPU, Target, array, f64

pytestmark = pytest.mark.group("rope_store_kv")

CANARY = 77.0
LAYOUTS = pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "neox"])
F16_UNIT, F16_FLOOR = 2.0**-11, 2.0**-25


def _caches(target: Target, blocks: int, size: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((blocks, 2, size, heads, dim), CANARY, dtype=dtype, device=target.name)


def _check(
    target: Target,
    *,
    heads: tuple[int, int],
    dim: int,
    rotary: int,
    slots: list[int],
    positions: list[int],
    interleaved: bool,
    block_size: int = 16,
    cache_dtype: torch.dtype | None = None,
) -> None:
    q_heads, kv_heads = heads
    tokens = len(slots)
    qkv = target.put(inputs.normal(inputs.generator(tokens, dim, rotary), tokens, (q_heads + 2 * kv_heads) * dim))
    table = target.put(inputs.cos_sin_table(max(positions) + 1, rotary), torch.float32)
    cache = _caches(target, 5, block_size, kv_heads, dim, cache_dtype or target.activations)
    before = f64(cache)
    q_out = functional.rope_store_kv(
        qkv,
        table,
        target.put(np.array(positions, dtype=np.int32)),
        cache[:, 0],
        cache[:, 1],
        target.put(np.array(slots)),
        interleaved=interleaved,
        q_out=target.unwritten(tokens, q_heads, dim),
    )
    q, k, v = rope.split_qkv(f64(qkv), q_heads, kv_heads, dim)
    where = np.array(positions)
    for name, actual, values in (("q", f64(q_out), q), ("k", f64(cache[:, 0]), k)):
        turned = rope.rotate(values, f64(table), where, interleaved=interleaved)
        magnitude = rope.rotate_magnitude(values, f64(table), where, interleaved=interleaved)
        limit = tolerance.rotate(turned, magnitude, target.arithmetic)
        if name == "k":
            if cache.dtype is torch.float16 and target.activations is torch.float32:
                limit = tolerance.cast(limit, turned, F16_UNIT, F16_FLOOR)
            turned, limit = (
                rope.store(before[:, 0], turned, np.array(slots)),
                tolerance.Tolerance(
                    rope.store(np.zeros_like(before[:, 0]), limit.limit, np.array(slots)), limit.source
                ),
            )
        judge.assert_within(actual, turned, limit, f"{target.name} {name}")
    stored_v = rope.store(before[:, 1], v, np.array(slots))
    judge.assert_within(f64(cache[:, 1]), stored_v, tolerance.exact(stored_v), f"{target.name} v")


@LAYOUTS
@pytest.mark.parametrize("tokens", [1, 8, 37])
def test_model_shape(targets: tuple[Target, ...], tokens: int, interleaved: bool) -> None:
    """9 query and 3 KV heads of 64, slots in an arbitrary order."""
    rng = inputs.generator(tokens)
    slots = rng.permutation(5 * 16)[:tokens].tolist()
    positions = rng.integers(0, 8192, size=tokens).tolist()
    for target in targets:
        _check(target, heads=(9, 3), dim=64, rotary=64, slots=slots, positions=positions, interleaved=interleaved)


@LAYOUTS
@pytest.mark.parametrize(("dim", "rotary"), [(64, 32), (128, 128), (256, 64), (16, 6), (48, 2)])
def test_partial_rotary_and_other_head_dims(
    targets: tuple[Target, ...], dim: int, rotary: int, interleaved: bool
) -> None:
    """The tail of a head that does not turn is copied exactly."""
    for target in targets:
        heads = (4, 2)
        _check(
            target, heads=heads, dim=dim, rotary=rotary, slots=[3, 0, 9], positions=[5, 0, 9], interleaved=interleaved
        )


@LAYOUTS
def test_pad_slots_are_not_written(targets: tuple[Target, ...], interleaved: bool) -> None:
    """Rejected or padded rows carry slot -1: q is still rotated, the cache keeps its canary."""
    slots, positions = [-1, 33, -1, 2, -1], [0, 1, 2, 3, 4]
    for target in targets:
        _check(target, heads=(9, 3), dim=64, rotary=64, slots=slots, positions=positions, interleaved=interleaved)


@pytest.mark.parametrize("block_size", [1, 16, 784])
def test_block_sizes(targets: tuple[Target, ...], block_size: int) -> None:
    slots = [0, 5 * block_size - 1, 2 * block_size]
    for target in targets:
        _check(
            target,
            heads=(2, 1),
            dim=64,
            rotary=64,
            slots=slots,
            positions=[0, 1, 2],
            interleaved=True,
            block_size=block_size,
        )


def test_half_precision_cache(native_library: str) -> None:
    """A float16 cache on the CPU holds the float32 result rounded once."""
    _check(
        CPU,
        heads=(9, 3),
        dim=64,
        rotary=64,
        slots=[4, 18, -1],
        positions=[0, 7, 8],
        interleaved=True,
        cache_dtype=torch.float16,
    )


WRONG: list[tuple[dict[str, torch.Tensor], str]] = [
    ({"slot_mapping": torch.tensor([80])}, "80"),
    ({"slot_mapping": torch.tensor([-2])}, "-2"),
    ({"slot_mapping": torch.tensor([0], dtype=torch.int32)}, "int32"),
    ({"slot_mapping": torch.tensor([0, 1])}, "2"),
    ({"positions": torch.tensor([4], dtype=torch.int32)}, "4"),
    ({"positions": torch.tensor([-1], dtype=torch.int32)}, "-1"),
    ({"positions": torch.tensor([0])}, "int64"),
    ({"qkv": torch.zeros(1, 16 * 6 + 1)}, "97"),
    ({"cos_sin": torch.zeros(4, 9, 2)}, "9"),
    ({"k_cache": torch.zeros(5, 16, 2, 16, dtype=torch.float64)}, "float64"),
    ({"v_cache": torch.zeros(5, 16, 2, 4)}, "4"),
    ({"k_cache": torch.zeros(5, 16, 2, 24), "v_cache": torch.zeros(5, 16, 2, 24)}, "24"),
    ({"q_out": torch.zeros(1, 3, 16)}, "3"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[f"{'-'.join(change)}-{said}" for change, said in WRONG])
def test_wrong_input_is_named(native_library: str, change: dict[str, torch.Tensor], said: str) -> None:
    cache = torch.zeros(5, 2, 16, 2, 16)
    arguments: dict[str, Any] = {
        "qkv": torch.zeros(1, (2 + 2 * 2) * 16),
        "cos_sin": torch.zeros(4, 8, 2),
        "positions": torch.zeros(1, dtype=torch.int32),
        "k_cache": cache[:, 0],
        "v_cache": cache[:, 1],
        "slot_mapping": torch.zeros(1, dtype=torch.int64),
        **change,
    }
    with pytest.raises(ValueError, match=said):
        functional.rope_store_kv(**arguments, interleaved=True)


def test_a_refused_call_writes_nothing(native_library: str) -> None:
    """One bad slot among good ones: the cache keeps every canary."""
    cache = _caches(CPU, 2, 4, 1, 16, torch.float32)
    with pytest.raises(ValueError, match="8"):
        functional.rope_store_kv(
            torch.ones(2, 3 * 16),
            torch.ones(4, 8, 2),
            torch.zeros(2, dtype=torch.int32),
            cache[:, 0],
            cache[:, 1],
            torch.tensor([0, 8]),
            interleaved=True,
        )
    assert (array(cache) == CANARY).all()
