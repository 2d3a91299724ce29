"""Every tensor of a hybrid checkpoint, cut by its name for every rank, against rows that the oracle labels by head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.errors import InputError, ModelFileError
from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import HybridConfig, read_hybrid_config
from engine.model.hybrid_shards import CUTS, hybrid_shard
from engine.model.hybrid_weights import AttentionWeights, GdnWeights, load_hybrid
from engine.parallel.plan import VocabSplit, split_heads
from engine.parallel.shards import Piece
from suites.checkpoints.hybrid import VOCAB, config_with_heads, fuse_projections, random_tensors, write_checkpoint
from suites.oracles.judge import assert_bits_equal
from suites.oracles.shards import interleaved_rows_of_rank, rows_of_rank
from suites.recording import Record

RANKS = [(tp, rank) for tp in (2, 4) for rank in range(tp)]
# 4 key heads of 16, 12 value heads of 12, 8 query heads and 4 KV heads of 32, MLP 80, hidden 48.
ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "linear_attn.in_proj_qkv.weight": ((4, 16), (4, 16), (12, 12)),
    "linear_attn.conv1d.weight": ((4, 16), (4, 16), (12, 12)),
    "linear_attn.in_proj_z.weight": ((12, 12),),
    "linear_attn.in_proj_b.weight": ((12, 1),),
    "linear_attn.in_proj_a.weight": ((12, 1),),
    "linear_attn.A_log": ((12, 1),),
    "linear_attn.dt_bias": ((12, 1),),
    "self_attn.q_proj.weight": ((8, 64),),  # each head's query and its gate
    "self_attn.k_proj.weight": ((4, 32),),
    "self_attn.v_proj.weight": ((4, 32),),
    "mlp.gate_proj.weight": ((80, 1),),
    "mlp.up_proj.weight": ((80, 1),),
}
COLUMNS = {
    "linear_attn.out_proj.weight": ((12, 12),),
    "self_attn.o_proj.weight": ((8, 32),),
    "mlp.down_proj.weight": ((80, 1),),
}
GROUPS = {"linear_attn.in_proj_qkvz.weight": (16, 16, 36, 36), "linear_attn.in_proj_ba.weight": (3, 3)}
WHOLE = ("linear_attn.norm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "input_layernorm.weight")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("shards")
    tensors, config = random_tensors(times_heads=2), config_with_heads(2)
    fused = fuse_projections(tensors, times_heads=2)
    return {
        "sections": write_checkpoint(folder / "sections", tensors, config),
        "groups": write_checkpoint(folder / "groups", fused, config),
    }


@pytest.fixture(scope="module")
def config(folders: dict[str, Path]) -> HybridConfig:
    return read_hybrid_config(folders["sections"])


def _taken(piece: Piece | None, axis: int) -> list[int]:
    assert piece is not None
    assert (piece.axis, piece.zeros) == (axis, 0)
    return [row for rows in piece.ranges for row in range(rows.start, rows.stop)]


@pytest.mark.parametrize(("tp", "rank"), RANKS)
def test_each_tensor_is_cut_as_the_oracle_says(tp: int, rank: int, config: HybridConfig, record: Record) -> None:
    record.group("shards by name")
    shard = hybrid_shard(config, tp, rank, "fp32")
    for name, sections in ROWS.items():
        height = sum(heads * rows for heads, rows in sections)
        piece = shard.piece(f"model.layers.0.{name}", (height, 48))
        assert _taken(piece, 0) == rows_of_rank(sections, tp, rank), name
    for name, sections in COLUMNS.items():
        width = sum(heads * rows for heads, rows in sections)
        piece = shard.piece(f"model.layers.0.{name}", (48, width))
        assert _taken(piece, 1) == rows_of_rank(sections, tp, rank), name
    for name, group in GROUPS.items():
        piece = shard.piece(f"model.layers.0.{name}", (4 * sum(group), 48))
        assert _taken(piece, 0) == interleaved_rows_of_rank(4, group, tp, rank), name
    for name in WHOLE:
        assert shard.piece(f"model.layers.0.{name}", (32,)) is None, name


@pytest.mark.parametrize(("tp", "rank"), RANKS)
def test_codes_and_block_scales_are_cut_alike(tp: int, rank: int, config: HybridConfig, record: Record) -> None:
    """An NVFP4 matrix is three tensors: 2 codes a byte, a scale for 16 columns, and one number for every rank."""
    record.group("shards by name")
    shard = hybrid_shard(config, tp, rank, "fp32")
    name = "model.layers.0.self_attn.o_proj.weight"
    expected = rows_of_rank(((8, 32),), tp, rank)
    assert _taken(shard.piece(name, (48, 128)), 1) == [column // 2 for column in expected[::2]]
    assert _taken(shard.piece(f"{name}_scale", (48, 16)), 1) == [column // 16 for column in expected[::16]]
    assert shard.piece(f"{name}_scale_2", ()) is None
    assert shard.piece(f"{name}_scale", (48, 1)) is None  # one scale per row belongs to all its columns


@pytest.mark.parametrize(("tp", "rank"), RANKS)
@pytest.mark.parametrize("layout", ["sections", "groups"])
def test_a_rank_loads_its_own_rows(
    layout: str, tp: int, rank: int, folders: dict[str, Path], config: HybridConfig, record: Record
) -> None:
    """From the files of either layout: the fused in-projection is [q | k | v | z | b | a] of this rank's heads."""
    record.group("shards by name")
    tensors = random_tensors(times_heads=2)
    shard = hybrid_shard(config, tp, rank, "fp32")
    with Checkpoint(folders[layout], shard=shard) as checkpoint:
        weights = load_hybrid(checkpoint, shard)
    gdn, attention = weights.layers[0].mixer, weights.layers[3].mixer
    assert isinstance(gdn, GdnWeights)
    assert isinstance(attention, AttentionWeights)
    prefix = "model.layers.0.linear_attn."
    stored = np.concatenate([tensors[f"{prefix}in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")])
    sections = ((4, 16), (4, 16), (12, 12), (12, 12), (12, 1), (12, 1))
    _same(gdn.in_proj.weight, stored[rows_of_rank(sections, tp, rank)], "in-projection")
    _same(gdn.conv, tensors[f"{prefix}conv1d.weight"][rows_of_rank(sections[:3], tp, rank), 0], "convolution")
    _same(gdn.a_log, tensors[f"{prefix}A_log"][rows_of_rank(((12, 1),), tp, rank)], "A_log")
    _same(
        gdn.out_proj.weight,
        tensors[f"{prefix}out_proj.weight"][:, rows_of_rank(((12, 12),), tp, rank)],
        "out-projection",
    )
    pairs = tensors["model.layers.3.self_attn.q_proj.weight"].reshape(8, 2, 32, 48)
    heads = rows_of_rank(((8, 1),), tp, rank)
    keys, values = (tensors[f"model.layers.3.self_attn.{name}_proj.weight"] for name in "kv")
    own = rows_of_rank(((4, 32),), tp, rank)
    _same(attention.qkv.weight, np.concatenate([pairs[heads, 0].reshape(-1, 48), keys[own], values[own]]), "q | k | v")
    assert attention.gate is not None
    _same(attention.gate.weight, pairs[heads, 1].reshape(-1, 48), "output gate")


@pytest.mark.parametrize(("tp", "rank"), RANKS)
def test_vocabulary_rows_and_the_zeros_behind_them(
    tp: int, rank: int, folders: dict[str, Path], config: HybridConfig, record: Record
) -> None:
    """99 tokens over 4 ranks: 25 each, of which the last has 24 and a row of zeros."""
    record.group("shards by name")
    shard = hybrid_shard(config, tp, rank, "fp32")
    with Checkpoint(folders["sections"], shard=shard) as checkpoint:
        head = load_hybrid(checkpoint, shard).head
    local = -(-VOCAB // tp)
    expected = np.zeros((local, 48))
    own = random_tensors(times_heads=2)["lm_head.weight"][rank * local : (rank + 1) * local]
    expected[: len(own)] = own
    _same(head, expected, "head")


def test_vocabularies_by_hand(record: Record) -> None:
    record.group("shards by name")
    shares = [VocabSplit(99, 4).rows(rank) for rank in range(4)]
    assert [(rows.start, rows.stop) for rows in shares] == [(0, 25), (25, 50), (50, 75), (75, 99)]
    beyond = [VocabSplit(5, 4).rows(rank) for rank in range(4)]
    assert [(rows.start, rows.stop) for rows in beyond] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_heads_by_hand(record: Record) -> None:
    """9 query heads in 3 groups over 2 ranks: 2 groups each, of which the last is zero; over 4 ranks one each."""
    record.group("shards by name")
    two, four = (split_heads(9, 3, tp, pad=True) for tp in (2, 4))
    assert (two.padded_heads, two.local_heads, two.local_kv_heads) == (12, 6, 2)
    assert [(two.kv_rows(rank).count, two.query_rows(rank).count) for rank in (0, 1)] == [(2, 6), (1, 3)]
    assert (four.local_heads, four.local_kv_heads) == (3, 1)
    assert [four.query_rows(rank).count for rank in range(4)] == [3, 3, 3, 0]
    even = split_heads(24, 4, 4, pad=True)
    assert (even.padded_kv_heads, even.local_heads) == (4, 6)


@pytest.mark.parametrize(
    ("tp", "pad", "message"),
    [
        (2, False, r"2 does not divide 3; allowed: a TP that does, or --pad-heads"),
        (8, False, r"8 does not divide 3; allowed: a TP that does$"),
        (8, True, "half of the heads zero"),
    ],
    ids=["not-asked-for", "not-offered", "mostly-zeros"],
)
def test_heads_that_are_refused(tp: int, pad: bool, message: str, record: Record) -> None:
    record.group("shards by name")
    with pytest.raises(InputError, match=message):
        split_heads(9, 3, tp, pad=pad)


def test_padding_is_not_offered_to_a_model_that_cannot_have_it(config: HybridConfig, record: Record) -> None:
    """A hybrid model's recurrent heads are never padded: advice that would be refused is no advice."""
    record.group("shards by name")
    attention = replace(config.attention, num_heads=6, num_kv_heads=3)
    with pytest.raises(InputError, match=r"2 does not divide 3; allowed: a TP that does$"):
        hybrid_shard(replace(config, attention=attention), 2, 0, "fp32")


def test_a_tensor_that_no_rule_divides_is_refused(config: HybridConfig, record: Record) -> None:
    record.group("shards by name")
    shard = hybrid_shard(config, 2, 0, "fp32")
    with pytest.raises(ModelFileError, match=r"mystery_proj\.weight: no rule divides it over ranks"):
        shard.piece("model.layers.0.mlp.mystery_proj.weight", (4, 4))
    with pytest.raises(ModelFileError, match=r"A_log of shape \(11,\) at TP 2: 11 rows; TP 2 must divide them"):
        shard.piece("model.layers.0.linear_attn.A_log", (11,))
    assert set(CUTS) >= {name.split(".")[1] for name in (*ROWS, *COLUMNS, *GROUPS)}


def _same(actual: object, expected: npt.NDArray[np.float64], what: str) -> None:
    assert isinstance(actual, torch.Tensor)
    assert_bits_equal(actual.float().numpy(), expected.astype(np.float32), what)
