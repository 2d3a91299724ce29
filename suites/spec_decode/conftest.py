"""The models that rounds run on: a real one, a small hybrid one and a small Llama, each loaded once a setting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, random_tensors, write_checkpoint
from suites.checkpoints.llama import LlamaSizes, write_random_llama
from suites.recording import Record

if TYPE_CHECKING:
    from engine.llm import LLM

EngineOf = Callable[..., "LLM"]


@pytest.fixture
def smollm2(native_library: str, record: Record) -> Path:
    """The real model, or NOT_RUN with the reason."""
    from engine.config import read_environment
    from engine.errors import ModelFileError
    from engine.model.weights_gguf import default_model_path

    try:
        return read_environment(os.environ).model or default_model_path()
    except ModelFileError as missing:
        record.not_run(str(missing))


@pytest.fixture(scope="session")
def hybrid(native_library: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three GDN layers and one of attention, 99 tokens, random weights."""
    return write_checkpoint(tmp_path_factory.mktemp("hybrid"), random_tensors())


@pytest.fixture(scope="session")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DFlash2 draft of two layers for the hybrid model: blocks of 8, 16 candidates, random weights."""
    config = draft_config(CONFIG)
    return write_draft(tmp_path_factory.mktemp("draft"), random_draft(config), config)


@pytest.fixture(scope="session")
def wide_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with 64 candidates: more of what a flat law may draw, so more is accepted."""
    config = draft_config(CONFIG, selector_top_k=64)
    return write_draft(tmp_path_factory.mktemp("wide-draft"), random_draft(config), config)


@pytest.fixture(scope="session")
def llama(native_library: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, about a hundred tokens, random weights."""
    sizes = LlamaSizes(layers=2, hidden=64, inner=96, heads=4, kv_heads=2, context=256)
    return write_random_llama(tmp_path_factory.mktemp("llama") / "tiny.gguf", sizes)


@pytest.fixture(scope="session")
def engine_of() -> EngineOf:
    """``engine_of(model, setting=value, ...)``: an engine, loaded once for all cases that ask for the same."""
    from engine.config import EngineConfig
    from engine.llm import LLM

    loaded: dict[tuple[tuple[str, Any], ...], LLM] = {}

    def engine(model: Path, **settings: Any) -> LLM:
        key = (("model", model), *sorted(settings.items()))
        if key not in loaded:
            loaded[key] = LLM(EngineConfig(**{"model": model, "threads": 2, **settings}))
        return loaded[key]

    return engine
