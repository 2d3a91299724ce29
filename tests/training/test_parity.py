from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.checkpoint import Checkpoint
from engine.model.dflash2 import DFlash2
from engine.model.dflash2_weights import load_dflash2
from engine.model.draft_runner import DraftBlock, DraftRunner
from engine.model.runner import SequenceRows
from engine.model.selector import Lattice
from engine.state.blocks import BlockPool
from engine.state.paged_kv import PagedKVCache
from engine.state.sequence import SequenceState
from engine.training import checkpoints
from engine.training.draft import Blocks, Draft
from engine.training.recipe import Recipe
from engine.training.row_models import TargetRows
from engine.training.target import Target

from . import tiny

LENGTH = 64


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    torch.set_num_threads(1)
    return tiny.run(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def target(recipe: Recipe) -> Target:
    return recipe.exported_target()


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return torch.randint(4, tiny.VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(5)).tolist()


def test_the_engine_gives_the_logits_that_were_trained(recipe: Recipe, target: Target, token_ids: list[int]) -> None:
    llm = LLM(EngineConfig(model=recipe.target_folder, draft="lookup", draft_tokens=7, threads=1))
    sequence = llm.pools.sequence(token_ids)
    rows = sequence.reserve(LENGTH, all_stay=True)
    seen = llm.runner.forward([SequenceRows(token_ids, rows, sequence.block_table, LENGTH)]).clone()
    sequence.release()
    with torch.no_grad():
        expected, _ = target(torch.tensor([token_ids]))
    # Activations meet packed weights in fixed point, off by at most 2^-15 of the largest of 32 (see `linear`). What
    # such an error comes to after the layers, the forward says itself: its weights are moved by as much.
    moved = recipe.exported_target()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            if "proj" in name:
                weight.mul_(1 + 2.0**-15 * (2 * torch.rand(weight.shape, generator=generator) - 1))
        allowed = (moved(torch.tensor([token_ids]))[0] - expected).norm()
    assert (seen - expected[0]).norm() < 8 * allowed


@pytest.mark.parametrize("anchor", [1, 7, 40])
def test_the_engine_drafts_with_the_forward_that_was_trained(
    recipe: Recipe, target: Target, token_ids: list[int], anchor: int
) -> None:
    draft = recipe.new_draft()
    checkpoints.load_exported_draft(draft, recipe.draft_folder)
    embedding = target.embed_tokens.weight
    with torch.no_grad():
        _, taps = target(torch.tensor([token_ids]), draft.config.target_layer_ids)
        joined = torch.cat(taps, dim=-1)
        blocks = Blocks.at(torch.tensor([anchor]), draft.config.block_size, LENGTH)
        hidden = draft(torch.tensor([token_ids]), joined, embedding, blocks)[0, 0]
    lattice = _engine_lattice(recipe, draft, embedding.half(), joined[0, :anchor], token_ids[anchor])
    unary = hidden @ embedding.T
    for step, candidates in enumerate(lattice.candidate_ids[0]):
        ids = torch.from_numpy(candidates)
        before = lattice.candidate_ids[0, step - 1] if step else [token_ids[anchor]] * len(candidates)
        with torch.no_grad():
            rows = [
                unary[step, ids] + draft.candidate_selector(hidden[step], torch.tensor(int(last)))[ids]
                for last in before
            ]
        # Sums of up to 128 float32 products a layer on both sides, in another order.
        torch.testing.assert_close(lattice.scores[0, step], torch.stack(rows), rtol=0, atol=128 * 8 * 2.0**-22)


def _engine_lattice(recipe: Recipe, draft: Draft, embedding: torch.Tensor, taps: torch.Tensor, anchor: int) -> Lattice:
    """What the engine makes of an exported draft over the context ``taps`` [T, taps * H]."""
    sizes = draft.config
    cache = PagedKVCache(sizes.num_layers, 32, 4, sizes.num_kv_heads, sizes.head_dim, "float32")
    with Checkpoint(recipe.draft_folder) as checkpoint:
        weights = load_dflash2(checkpoint, sizes)
    model = DFlash2(weights, cache, embedding=embedding, head=embedding, max_positions=128, max_blocks=1)
    room = torch.zeros(LENGTH, taps.shape[1])
    runner = DraftRunner(model, room, max_sequences=1, max_blocks=32)
    sequence = SequenceState([0] * len(taps) + [anchor], BlockPool(32, 4))
    rows = sequence.reserve(len(taps))
    batch = [SequenceRows([0] * len(taps), rows, tuple(sequence.block_table), 0)]
    room[: len(taps)] = taps
    runner.compute_context(batch)
    sequence.commit(len(taps))
    runner.store_context(batch, [len(taps)])
    return runner.draft([DraftBlock(anchor, sequence.reserve(sizes.block_size), sequence.block_table)])


def test_row_by_row_is_the_whole_text(target: Target, token_ids: list[int]) -> None:
    rows = TargetRows(target, 2, LENGTH)
    with torch.no_grad():
        expected, _ = target(torch.tensor([token_ids]))
        for _ in range(2):  # the second text starts afresh over what the first one left
            seen = [
                rows.step(torch.tensor([token, 7]), torch.tensor([position, position]))[0]
                for position, token in enumerate(token_ids)
            ]
    # The recurrence against its chunked form, float32 on both sides, on logits of about 10.
    torch.testing.assert_close(torch.stack(seen), expected[0], rtol=0, atol=10 * 2.0**-14)
