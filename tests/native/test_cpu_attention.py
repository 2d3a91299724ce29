"""Attention, rotary embedding and the KV write on the CPU: against the twin and fp64, poison, bits, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from engine.ops import functional, reference
from tests.native.cpu_paths import assert_same_bits, same_on_every_path

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class Case:
    """A batch over a shuffled cache that is NaN wherever no live token lies."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    block_size: int = 16
    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    dtype: torch.dtype = torch.float32

    def build(self, seed: int = 0) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(seed)
        blocks = [-(-length // self.block_size) for length in self.lengths]
        total = sum(blocks) + 3
        cache = torch.full((total, 2, self.block_size, self.kv_heads, self.head_dim), float("nan")).to(self.dtype)
        order = iter(torch.randperm(total, generator=draw).tolist())
        table = torch.full((len(self.lengths), max(blocks, default=0) + 1), -9, dtype=torch.int32)
        for row, (length, count) in enumerate(zip(self.lengths, blocks, strict=True)):
            for column in range(count):
                block = next(order)
                table[row, column] = block
                live = min(self.block_size, length - column * self.block_size)
                fresh = torch.randn(2, live, self.kv_heads, self.head_dim, generator=draw)
                cache[block, :, :live] = fresh.to(self.dtype)
        query_start = torch.tensor([0, *torch.tensor(self.queries).cumsum(0).tolist()], dtype=torch.int32)
        return {
            "q": torch.randn(sum(self.queries), self.kv_heads * self.group, self.head_dim, generator=draw),
            "k_cache": cache[:, 0],
            "v_cache": cache[:, 1],
            "block_table": table,
            "seq_lens": torch.tensor(self.lengths, dtype=torch.int32),
            "query_start": query_start,
            "scale": self.head_dim**-0.5,
        }


DECODE = Case((1, 17, 300, 600), (1, 1, 1, 1))
VERIFY = Case((8, 257, 260), (8, 8, 5))
PREFILL = Case((270, 40), (60, 33))
CASES = {
    "decode": DECODE,
    "decode, one sequence over many partitions": Case((2000,), (1,)),
    "verify": VERIFY,
    "prefill": PREFILL,
    "prefill, half": replace(PREFILL, dtype=torch.float16),
    "e4m3": replace(VERIFY, dtype=torch.float8_e4m3fn),
    "e5m2": replace(VERIFY, dtype=torch.float8_e5m2),
    "page 784, head 256, group 6": Case((800, 784), (6, 1), block_size=784, head_dim=256, kv_heads=1, group=6),
    "page 1, head 16, no grouping": Case((40,), (5,), block_size=1, head_dim=16, group=1),
    "head 48": Case((70, 3), (2, 3), head_dim=48, block_size=7),
}
WINDOWS = {
    "causal": {},
    "left window": {"window": (20, -1)},
    "long left window": {"window": (280, -1)},
    "not causal, both sides": {"causal": False, "window": (50, 3)},
    "not causal": {"causal": False},
}


def fp64(case: Case, arguments: dict[str, Any]) -> torch.Tensor:
    wide = {name: value.double() if name == "q" else value for name, value in arguments.items()}
    return reference.paged_attention(**wide)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_against_the_twin_on_every_path(case: Case, window: dict[str, Any]) -> None:
    arguments = case.build() | window
    (out,) = same_on_every_path(lambda: (functional.paged_attention(**arguments),))
    assert not out.isnan().any(), "a row read past the live tokens"
    # Scores of size s err by D * 2^-24 * s and move a weight by as much; sums over keys add no more than that again.
    # |q| |k| * scale stays below 8 * sqrt(D) here and |v| below 6: 1e-5 is eight times the error that they allow.
    torch.testing.assert_close(out, reference.paged_attention(**arguments), atol=1e-5, rtol=0)


def test_a_row_has_the_same_bits_alone_verified_and_prefilled() -> None:
    arguments = Case((300,), (300,)).build()
    out = functional.paged_attention(**arguments)
    for length, queries in ((300, 8), (300, 1), (257, 3), (256, 1), (17, 17), (1, 1)):
        part = arguments | {
            "q": arguments["q"][length - queries : length],
            "seq_lens": torch.tensor([length], dtype=torch.int32),
            "query_start": torch.tensor([0, queries], dtype=torch.int32),
        }
        expected = out[length - queries : length]
        assert_same_bits(functional.paged_attention(**part), expected, f"{queries} rows at {length}")


def test_fp8_scales_multiply_keys_and_values() -> None:
    for dtype in FP8:
        arguments = replace(VERIFY, dtype=dtype).build() | {"k_scale": 0.5, "v_scale": 2.0}
        expected = reference.paged_attention(**arguments)
        # The bound of `test_against_the_twin_on_every_path`, doubled as the values are.
        torch.testing.assert_close(functional.paged_attention(**arguments), expected, atol=2e-5, rtol=0)


def test_padding_rows_and_rows_that_see_nothing_are_zero() -> None:
    arguments = DECODE.build()
    arguments["seq_lens"][1] = 0
    out = functional.paged_attention(**arguments, out=torch.full_like(arguments["q"], float("nan")))
    assert (out[1] == 0).all()
    assert (out[[0, 2, 3]] != 0).any(dim=-1).all()


@pytest.mark.parametrize("side", ["k_cache", "v_cache"])
def test_a_nan_that_a_row_sees_is_in_its_output(side: str) -> None:
    """A corrupt cache must reach the logits, where it is refused; a row that does not see it keeps its bits."""
    call = Case((300, 300), (1, 1)).build()
    whole = functional.paged_attention(**call)
    block = int(call["block_table"][1, 3])
    call[side][block, 5, 0, 7] = float("nan")
    out = functional.paged_attention(**call)
    assert_same_bits(out[0], whole[0], "the sequence whose cache is sound")
    assert_same_bits(out[1, 3:], whole[1, 3:], "the heads of the other KV head")
    seen = out[1, :3].isnan()
    assert seen.all() if side == "k_cache" else seen[:, 7].all()


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("half", [32, 16, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rope_store_kv_equals_the_twin_and_touches_its_slots_alone(
    interleaved: bool, half: int, dtype: torch.dtype
) -> None:
    wide = torch.randn(21, 3 + 8 * 64)
    qkv, table = wide[:, 3:], torch.randn(50, half, 2)
    positions = torch.randint(0, 50, (21,), dtype=torch.int32)
    slots = torch.randperm(48)[:21]
    slots[4] = -1
    poison = torch.full((6, 2, 8, 2, 64), 7.0).to(dtype)

    def run() -> tuple[torch.Tensor, ...]:
        cache = poison.clone()
        q = functional.rope_store_kv(qkv, table, positions, cache[:, 0], cache[:, 1], slots, interleaved=interleaved)
        return q, cache

    q, cache = same_on_every_path(run)
    twin = poison.clone()
    expected = reference.rope_store_kv(qkv, table, positions, twin[:, 0], twin[:, 1], slots, interleaved=interleaved)
    assert_same_bits(q, expected, "queries")
    assert_same_bits(cache, twin, "cache")


def attention(**changes: Any) -> Callable[[], object]:
    return lambda: functional.paged_attention(**(VERIFY.build() | changes))


def table_with(row: int, column: int, block: int) -> torch.Tensor:
    table: torch.Tensor = VERIFY.build()["block_table"]
    table[row, column] = block
    return table


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rope(**changes: Any) -> Callable[[], object]:
    cache = torch.zeros(4, 2, 8, 2, 64)
    arguments: dict[str, Any] = {
        "qkv": torch.zeros(2, 6 * 64),
        "cos_sin": torch.zeros(10, 32, 2),
        "positions": integers(0, 9),
        "k_cache": cache[:, 0],
        "v_cache": cache[:, 1],
        "slot_mapping": torch.tensor([0, 31]),
        "interleaved": True,
    }
    return lambda: functional.rope_store_kv(**(arguments | changes))


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("block_table[1, 3] is 99, allowed 0..37", attention(block_table=table_with(1, 3, 99))),
    ("block_table[2, 0] is -1, allowed 0..37", attention(block_table=table_with(2, 0, -1))),
    ("seq_lens[1] is 4, allowed 0 (padding) or 8..288", attention(seq_lens=integers(8, 4, 260))),
    ("seq_lens[2] is 289, allowed", attention(seq_lens=integers(8, 257, 289))),
    ("seq_lens[0] is -3, allowed", attention(seq_lens=integers(-3, 257, 260))),
    ("query_start: runs from 0 to 20, need 0 to the 21 rows", attention(query_start=integers(0, 8, 16, 20))),
    ("query_start[2] is 7 after 8, need ascending", attention(query_start=integers(0, 8, 7, 21))),
    ("query_start: saw shape (3,), need [4]", attention(query_start=integers(0, 8, 21))),
    ("q: saw 5 query heads, need a multiple of the 2 KV heads", attention(q=torch.zeros(21, 5, 64))),
    ("q: saw shape (21, 6, 32)", attention(q=torch.zeros(21, 6, 32))),
    ("window: saw (-2, -1)", attention(window=(-2, -1))),
    ("scale: saw nan", attention(scale=float("nan"))),
    ("k_scale: saw 0.0", attention(k_scale=0.0)),
    ("partition: saw 24 keys, need a positive multiple of 16", attention(partition=24)),
    ("k_cache: saw dtype torch.float64", attention(k_cache=torch.zeros(38, 16, 2, 64, dtype=torch.float64))),
    ("v_cache: saw shape (38, 16, 2, 32)", attention(v_cache=torch.zeros(38, 16, 2, 32))),
    (
        "k_cache: saw head dim 40, allowed: multiples of 16 up to 256",
        attention(k_cache=torch.zeros(1, 1, 1, 40), v_cache=torch.zeros(1, 1, 1, 40)),
    ),
    ("block_table: saw dtype torch.int64", attention(block_table=torch.zeros(3, 18, dtype=torch.int64))),
    ("positions[1] is 10, allowed 0..9", rope(positions=integers(0, 10))),
    ("positions[0] is -1, allowed 0..9", rope(positions=integers(-1, 1))),
    ("slot_mapping[1] is 32, allowed -1..31: the cache has 4 blocks of 8", rope(slot_mapping=torch.tensor([0, 32]))),
    ("slot_mapping[0] is -2, allowed -1..31", rope(slot_mapping=torch.tensor([-2, 0]))),
    ("slot_mapping: saw dtype torch.int32", rope(slot_mapping=integers(0, 1))),
    ("qkv: saw 256 columns for 2 KV heads of 64, need (Hq + 4) * 64", rope(qkv=torch.zeros(2, 4 * 64))),
    ("cos_sin: saw 33 angles per position, allowed 1..32", rope(cos_sin=torch.zeros(10, 33, 2))),
    ("q_out: saw shape (2, 3, 64), need [2, 2, 64]", rope(q_out=torch.zeros(2, 3, 64))),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:45] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_nothing_is_written_when_a_slot_is_refused() -> None:
    cache = torch.zeros(4, 2, 8, 2, 64)
    with pytest.raises(ValueError, match="slot_mapping"):
        rope(qkv=torch.ones(2, 6 * 64), k_cache=cache[:, 0], v_cache=cache[:, 1], slot_mapping=torch.tensor([0, 99]))()
    assert (cache == 0).all()
