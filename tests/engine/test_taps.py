from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.attention import DirectAttention
from engine.model.gguf_file import read_gguf
from engine.model.llama import Llama
from engine.model.runner import ModelRunner, SequenceRows
from engine.model.taps import NO_TAPS, Taps
from engine.model.weights_gguf import load_llama
from engine.state.blocks import BlockPool
from engine.state.paged_kv import PagedKVCache
from engine.state.sequence import SequenceState
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, random_tensors, write_checkpoint

PROMPT = list(range(4, 25))


def rows_of(runner: ModelRunner, sequence: SequenceState) -> torch.Tensor:
    """The residual stream after the last layer, [T, H]."""
    reservation = sequence.reserve(len(PROMPT), all_stay=True)
    runner.forward([SequenceRows(PROMPT, reservation, sequence.block_table, 0)])
    return runner._hidden[: len(PROMPT)].clone()


def silenced_behind(folder: Path, layer: int) -> LLM:
    """The random hybrid target with nothing added to the stream after ``layer``."""
    tensors = random_tensors()
    for name in tensors:
        ends = name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight"))
        if ends and int(name.split(".")[2]) > layer:
            tensors[name] = np.zeros_like(tensors[name])
    return LLM(EngineConfig(model=write_checkpoint(folder, tensors)))


@pytest.mark.parametrize("taps", [[0, 1, 2, 3], [2], [0, 3]])
def test_a_tap_is_what_leaves_its_layer(tmp_path: Path, taps: list[int]) -> None:
    """Tap i holds the stream that a model leaves whose later layers add nothing."""
    target = write_checkpoint(tmp_path / "target", random_tensors())
    config = draft_config(CONFIG, target_layer_ids=taps)
    draft = write_draft(tmp_path / "draft", random_draft(config), config)
    llm = LLM(EngineConfig(model=target, draft="dflash2", draft_model=draft))
    rows_of(llm.runner, llm.pools.sequence(PROMPT))
    hidden = CONFIG["hidden_size"]
    for index, layer in enumerate(taps):
        short = silenced_behind(tmp_path / str(layer), layer)
        expected = rows_of(short.runner, short.pools.sequence(PROMPT))
        tapped = llm.runner.taps.rows[: len(PROMPT), index * hidden : (index + 1) * hidden]
        assert torch.equal(tapped, expected), f"tap of layer {layer}"


def test_a_llama_is_tapped_alike(tiny_path: Path) -> None:
    weights = load_llama(read_gguf(tiny_path))
    config = weights.config

    def runner(layers: int, taps: tuple[int, ...]) -> ModelRunner:
        cache = PagedKVCache(layers, 8, 16, config.num_kv_heads, config.head_dim, "float32")
        attention = DirectAttention(config.head_dim**-0.5)
        short = replace(weights, layers=weights.layers[:layers])
        model = Llama(short, cache, attention, max_positions=64, max_rows=32)
        return ModelRunner(
            model, attention, max_rows=32, max_logit_rows=1, max_sequences=1, max_blocks=4, tap_layers=taps
        )

    tapped = runner(2, (0, 1))
    rows_of(tapped, SequenceState(PROMPT, BlockPool(8, 16)))
    for layer in (0, 1):
        expected = rows_of(runner(layer + 1, ()), SequenceState(PROMPT, BlockPool(8, 16)))
        assert torch.equal(tapped.taps.rows[: len(PROMPT)].view(len(PROMPT), 2, -1)[:, layer], expected)


def test_nobody_taps_by_default() -> None:
    assert NO_TAPS.behind(0, torch.zeros(2, 3)) == []
    assert NO_TAPS.first(4).layer_ids == ()
    assert len(Taps((1,), torch.zeros(2, 3)).behind(1, torch.zeros(2, 3))) == 1
