"""A draft model on the SM70 kernels: its drafts beside those of the CPU, losslessness there, and its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.llm import LLM
from engine.model.draft_runner import DraftBlock
from engine.model.graphs import ForwardGraphs
from engine.model.selector import Lattice, best_ids_on_host
from engine.ops.head import best_ids_on_device
from engine.request import SamplingParams
from native.cuda_bindings import launch
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG
from suites.kernels.engine_pairs import PROMPT, ROUNDINGS_A_LAYER, SMALL_HEADS, engine, hybrid_folder
from suites.oracles import tolerance
from suites.recording import Record
from suites.spec_decode.tape import drafting
from suites.targets import Target

pytestmark = pytest.mark.group("draft model on the device")

# Stored in float16 one after another: norm, coefficients, convolution, projection, norm and RoPE of a head, mixed
# heads, projection, residual; the same without the heads in the MLP, with gate and up, their product; features, final
# norm. The target's own come in front: the taps.
ROUNDINGS = 4 * ROUNDINGS_A_LAYER + 2 * 17 + 4


@pytest.fixture(scope="session")
def half_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, matrices exact in float16, a rank that the kernels take."""
    config = {**draft_config(CONFIG, selector_rank=16), "head_dim": 64}
    rounded = {name: tensor.astype(np.float16).astype(np.float64) for name, tensor in random_draft(config).items()}
    return write_draft(tmp_path_factory.mktemp("half-draft"), rounded, config)


def drafting_engine(folder: Path, device: str, **settings: Any) -> LLM:
    return engine(hybrid_folder(SMALL_HEADS), device, draft="dflash2", draft_model=folder, **settings)


def first_lattice(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> tuple[Lattice, torch.Tensor]:
    """The lattice of the first round after the prompt, and the logits that it was made of."""
    draft, seen = drafting(llm), []
    propose = draft.draft

    def watching(batch: Sequence[DraftBlock]) -> Lattice:
        seen.append((propose(batch), draft._outputs.logits[: draft.max_drafts].cpu().clone()))
        return seen[-1][0]

    with monkeypatch.context() as patch:
        patch.setattr(draft, "draft", watching)
        llm.generate(PROMPT, SamplingParams(max_tokens=3, stop_token_ids=()))
    return seen[0]


def test_drafts_are_those_of_the_cpu(
    sm70: Target, record: Record, half_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taps, context, block, head and candidates; only activations are rounded otherwise."""
    _, logits = first_lattice(drafting_engine(half_draft, "cuda"), monkeypatch)
    with launch.suspended():
        _, expected = first_lattice(drafting_engine(half_draft, "cpu"), monkeypatch)
    allowed = tolerance.half_logit_gap(float(expected.abs().max()), ROUNDINGS)
    worst = float((logits - expected).abs().max())
    record.metric("worst draft logit", worst, "logits", exact=False)
    assert worst < allowed, f"a draft logit is off by {worst:.4f}, float16 activations may move it by {allowed:.4f}"


@pytest.mark.parametrize("pipeline", [False, True], ids=["in-order", "ahead"])
def test_drafts_change_no_token(sm70: Target, half_draft: Path, pipeline: bool) -> None:
    params = SamplingParams(max_tokens=10, stop_token_ids=())
    plain = engine(hybrid_folder(SMALL_HEADS), "cuda").generate(PROMPT, params)
    drafted = drafting_engine(half_draft, "cuda", context_pipeline=pipeline).generate(PROMPT, params)
    assert drafted.error is None
    assert drafted.token_ids == plain.token_ids


def test_the_device_picks_the_candidates_of_the_host(sm70: Target) -> None:
    """By one integer per token there, row by row here; ties, signed zeros and masked ids among them."""
    rows = torch.randn(7, 4099, generator=torch.Generator().manual_seed(2)).mul(8).round().div(2)
    rows[3, 16:] = -torch.inf
    rows[4, ::2], rows[4, 1::2] = 0.0, -0.0
    assert torch.equal(best_ids_on_device(rows.to(sm70.name), 16).cpu(), best_ids_on_host(rows, 16))


def counted(graphs: ForwardGraphs | None) -> int:
    """How often a graph was replayed; 0 where there are none."""
    return 0 if graphs is None else graphs.replayed


def test_graphs_of_context_and_blocks_change_no_bit(gpu: Target, half_draft: Path) -> None:
    """Eager, block graphs, context graphs, and those ahead of acceptance: tokens, acceptance and draft KV pages."""
    params = SamplingParams(max_tokens=48, stop_token_ids=(), temperature=4.0, top_k=30, seed=3)
    settings: dict[str, dict[str, bool]] = {
        "eager": {"cuda_graphs": False},
        "blocks": {},
        "context": {"context_kv_graph": True},
        "ahead": {"context_kv_graph": True, "context_pipeline": True},
    }
    pages, said, replays = {}, {}, {}
    for name, setting in settings.items():
        llm = drafting_engine(half_draft, "cuda", **setting)
        draft = drafting(llm)
        draft.model.cache._data.zero_()
        result = llm.generate(PROMPT, params)
        assert result.error is None
        said[name] = (result.token_ids, result.acceptance_histogram)
        pages[name] = draft.model.cache._data.cpu().clone()
        replays[name] = (counted(draft._block_graphs), counted(draft._context_graphs))
    assert replays["eager"] == (0, 0)
    assert replays["blocks"][0] > 10
    assert replays["blocks"][1] == 0
    assert min(replays["context"][1], replays["ahead"][1]) > 20
    for name in settings:
        assert said[name] == said["eager"], name
        assert torch.equal(pages[name], pages["eager"]), name
