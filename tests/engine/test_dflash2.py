from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.model.checkpoint import Checkpoint
from engine.model.dflash2 import DFlash2
from engine.model.dflash2_config import read_dflash2_config
from engine.model.dflash2_weights import load_dflash2
from engine.model.draft_runner import DraftBlock, DraftRunner
from engine.model.runner import SequenceRows
from engine.model.selector import Lattice, best_ids, best_ids_on_host
from engine.ops.head import best_ids_on_device
from engine.state.blocks import BlockPool
from engine.state.paged_kv import PagedKVCache
from engine.state.sequence import SequenceState
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, VOCAB

from . import dflash2_reference as reference

F64 = npt.NDArray[np.float64]

HIDDEN, BLOCK_SIZE, NUM_BLOCKS = 48, 4, 64
DRAFT = draft_config(CONFIG)
# Rows of up to 96 float32 products through 2 layers and 4 convolutions, on values of up to 8; fp64 on the other side.
ERROR = 8 * 96 * 8 * 2.0**-24 * 4


class World:
    """A random draft model with target parts of its own, and sequences whose tap rows are random too."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        max_sequences: int = 3,
        dtype: torch.dtype = torch.float32,
        rounded: bool = False,
    ) -> None:
        rng = np.random.default_rng(5)
        self.config = config
        self.tensors = random_draft(config, seed=1)
        if rounded:
            self.tensors = {name: tensor.astype(np.float16) for name, tensor in self.tensors.items()}
        write_draft(folder, self.tensors, config, dtype)
        self.embedding = rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32).astype(np.float64)
        self.head = (rng.normal(size=(VOCAB, HIDDEN)) * 0.5).astype(np.float32).astype(np.float64)
        sizes = read_dflash2_config(folder)
        cache = PagedKVCache(sizes.num_layers, NUM_BLOCKS, BLOCK_SIZE, sizes.num_kv_heads, sizes.head_dim, "float32")
        with Checkpoint(folder) as checkpoint:
            model = DFlash2(
                load_dflash2(checkpoint, sizes),
                cache,
                embedding=torch.from_numpy(self.embedding).float(),
                head=torch.from_numpy(self.head).float(),
                max_positions=128,
                max_blocks=max_sequences,
            )
        self.cache = cache
        self.taps = torch.zeros(64, len(sizes.target_layer_ids) * HIDDEN)
        self.runner = DraftRunner(model, self.taps, max_sequences=max_sequences, max_blocks=32)
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)

    def rows(self, count: int, seed: int) -> F64:
        """Tap rows of the positions 0..count-1 of a text."""
        values: F64 = np.random.default_rng(seed).normal(size=(count, self.taps.shape[1]))
        return values.astype(np.float32).astype(np.float64)

    def forward(self, sequences: Sequence[SequenceState], taps: Sequence[F64], keep: Sequence[int]) -> None:
        """What a forward of the target leaves, and the context that follows it."""
        batch = []
        for sequence, rows in zip(sequences, taps, strict=True):
            reservation = sequence.reserve(len(rows))
            tokens = sequence.token_ids[reservation.start : reservation.start + len(rows)]
            batch.append(SequenceRows(tokens, reservation, tuple(sequence.block_table), 0))
        joined = np.concatenate(taps)
        self.taps[: len(joined)] = torch.from_numpy(joined)
        self.runner.compute_context(batch)
        for sequence, count in zip(sequences, keep, strict=True):
            sequence.commit(count)
        self.runner.store_context(batch, keep)

    def draft(self, sequences: Sequence[SequenceState]) -> Lattice:
        blocks = []
        for sequence in sequences:
            reservation = sequence.reserve(self.runner.block_size)
            blocks.append(DraftBlock(sequence.token_ids[sequence.num_computed], reservation, sequence.block_table))
        lattice = self.runner.draft(blocks)
        for sequence in sequences:
            sequence.commit(0)
        return lattice

    def sequence(self, length: int, seed: int = 0) -> SequenceState:
        tokens = np.random.default_rng(seed).integers(0, VOCAB, size=length).tolist()
        return SequenceState(tokens, self.pool)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, DRAFT)


@pytest.mark.parametrize(
    ("special", "context"),
    [
        ({}, 41),  # longer than the window of the sliding layer
        ({}, 1),
        ({"block_size": 4, "conv_kernel_size": 3, "target_layer_ids": [1]}, 9),
        ({"conv_kernel_size": 1, "conv_group_size": 48, "input_embedding_scale": 1.7}, 12),
    ],
)
def test_the_forward_is_that_of_the_plain_one(tmp_path: Path, special: dict[str, Any], context: int) -> None:
    world = World(tmp_path, draft_config(CONFIG, **special))
    sequence, taps = world.sequence(60), world.rows(context, seed=3)
    first = min(context, 5)
    world.forward([sequence], [taps[:first]], [first])
    if context > first:
        world.forward([sequence], [taps[first:]], [context - first])
    lattice = world.draft([sequence])
    anchor = sequence.token_ids[context]
    rows = reference.hidden(world.config, world.tensors, world.embedding, taps, anchor)
    assert np.abs(world.runner._outputs.hidden[: len(rows)].numpy() - rows).max() < ERROR
    logits = rows @ world.head.T
    candidates = lattice.candidate_ids[0]
    for step, row in enumerate(logits):
        least = np.sort(row)[-candidates.shape[1]]
        assert row[candidates[step]].min() > least - 2 * ERROR
    unary = np.take_along_axis(logits, candidates, axis=1)
    assert np.abs(lattice.unary[0] - unary).max() < ERROR
    expected = reference.scores(world.tensors, rows, unary, candidates, anchor)
    # Edges are sums of `selector_rank` products of values of about 1, 1 and 3.
    assert np.abs(lattice.scores[0].numpy() - expected).max() < 12 * 3 * ERROR


def test_multiplier_and_cap_act_on_the_unary_scores_alone(tmp_path: Path, world: World) -> None:
    taps = world.rows(9, seed=3)
    other = World(tmp_path / "other", draft_config(CONFIG, output_multiplier=0.5, final_logit_softcapping=2.0))
    lattices = []
    for one in (world, other):
        sequence = one.sequence(20)
        one.forward([sequence], [taps], [9])
        lattices.append(one.draft([sequence]))
    plain, capped = lattices
    assert np.array_equal(plain.candidate_ids, capped.candidate_ids)
    # The float32 tanh of torch and of NumPy: eight units of the last place for both.
    assert np.allclose(capped.unary, 2 * np.tanh(plain.unary / 4), rtol=1e-6, atol=0)


def test_neighbours_chunks_and_cache_places_change_no_bit(world: World) -> None:
    taps = [world.rows(17, seed=1), world.rows(6, seed=2), world.rows(30, seed=3)]
    together = [world.sequence(40, seed) for seed in (1, 2, 3)]
    world.forward(together, [rows[:3] for rows in taps], [3, 3, 3])
    world.forward(together, [rows[3:] for rows in taps], [14, 3, 27])
    lattice = world.draft(together)
    for index, seed in enumerate((1, 2, 3)):
        alone = world.sequence(40, seed)
        world.forward([alone], [taps[index]], [len(taps[index])])
        solo = world.draft([alone])
        assert np.array_equal(solo.candidate_ids[0], lattice.candidate_ids[index])
        assert torch.equal(solo.scores[0], lattice.scores[index])
        alone.release()


def test_half_precision_weights_are_the_same_numbers(tmp_path: Path) -> None:
    """Weights that float16 holds exactly, stored in either format: the same bits come out."""
    lattices = []
    for dtype in (torch.float32, torch.float16):
        world = World(tmp_path / str(dtype), DRAFT, dtype=dtype, rounded=True)
        sequence = world.sequence(30)
        world.forward([sequence], [world.rows(11, seed=2)], [11])
        lattices.append(world.draft([sequence]))
    assert np.array_equal(lattices[0].candidate_ids, lattices[1].candidate_ids)
    assert torch.equal(lattices[0].scores, lattices[1].scores)


def test_rejected_rows_leave_no_trace(world: World) -> None:
    """A round of eight rows of which three stay: every page but theirs keeps its canary, and the next draft is that of
    a text which never had the other five.
    """
    canary = 77.0
    world.cache._data.fill_(canary)
    taps, wrong = world.rows(13, seed=4), world.rows(8, seed=5)
    clean, spoilt = world.sequence(30, seed=4), world.sequence(30, seed=4)
    world.forward([clean], [taps], [13])
    world.forward([spoilt], [taps[:10]], [10])
    wrong[:3] = taps[10:]
    world.forward([spoilt], [wrong], [3])
    written = [
        block * BLOCK_SIZE + offset
        for one in (clean, spoilt)
        for index, block in enumerate(one.block_table)
        for offset in range(min(BLOCK_SIZE, 13 - index * BLOCK_SIZE))
    ]
    for layer in range(2):
        for pages in (world.cache.keys(layer), world.cache.values(layer)):
            rows = pages.reshape(NUM_BLOCKS * BLOCK_SIZE, -1)
            untouched = torch.ones(len(rows), dtype=torch.bool)
            untouched[written] = False
            assert (rows[untouched] == canary).all()
            assert not (rows[written] == canary).any()
    assert torch.equal(world.draft([clean]).scores, world.draft([spoilt]).scores)


def test_a_block_is_scratch(world: World) -> None:
    sequence, taps = world.sequence(30), world.rows(12, seed=6)
    world.forward([sequence], [taps[:10]], [10])
    first = world.draft([sequence])
    assert torch.equal(world.draft([sequence]).scores, first.scores)
    assert len(sequence.block_table) == 3
    world.forward([sequence], [taps[10:]], [2])
    fresh = world.sequence(30)
    world.forward([fresh], [taps], [12])
    assert torch.equal(world.draft([sequence]).scores, world.draft([fresh]).scores)


def test_a_context_is_stored_once_and_only_for_the_batch_it_was_computed_for(world: World) -> None:
    sequence = world.sequence(30)
    reservation = sequence.reserve(2)
    batch = [SequenceRows(sequence.token_ids[:2], reservation, sequence.block_table, 0)]
    with pytest.raises(RuntimeError, match="the context of none is computed, not of this batch"):
        world.runner.store_context(batch, [2])
    world.runner.compute_context(batch)
    with pytest.raises(RuntimeError, match="the context of another one is computed, not of this batch"):
        world.runner.store_context(list(batch), [2])
    world.runner.store_context(batch, [2])
    with pytest.raises(RuntimeError, match="the context of none is computed"):
        world.runner.store_context(batch, [2])


def test_logits_that_are_not_finite_concern_their_own_block(world: World) -> None:
    fine, broken = world.sequence(20, seed=1), world.sequence(20, seed=2)
    taps = world.rows(5, seed=1)
    world.forward([fine, broken], [taps, taps], [5, 5])
    assert isinstance(world.runner.model._embedding, torch.Tensor)
    world.runner.model._embedding[broken.token_ids[5], 7] = torch.nan
    lattice = world.draft([fine, broken])
    assert lattice.faults == (None, "the draft model's logits are not finite")
    assert torch.equal(lattice.scores[0], world.draft([fine]).scores[0])


def test_too_many_blocks_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="0 blocks to draft; allowed: 1 to 3"):
        world.runner.draft([])


def test_best_ids_prefer_lower_ids_among_equals() -> None:
    row = np.array([1, 3, 2, 3, 2, 2, -np.inf], np.float32)
    assert best_ids(row, 4).tolist() == [1, 3, 2, 4]
    assert best_ids(row, 1).tolist() == [1]
    assert best_ids(row, 7).tolist() == [1, 3, 2, 4, 5, 0, 6]


@pytest.mark.parametrize("grid", [0.0, 0.5])
def test_both_ways_to_the_best_ids_agree(grid: float) -> None:
    rows = torch.randn(6, 999, generator=torch.Generator().manual_seed(3)) * 4
    if grid:
        rows = (rows / grid).round() * grid
    rows[2, 5:900] = -torch.inf
    rows[3, 7], rows[3, 8] = 0.0, -0.0
    assert torch.equal(best_ids_on_device(rows, 40), best_ids_on_host(rows, 40))
