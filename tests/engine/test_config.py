from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, read_environment
from engine.errors import InputError

MODEL = {"draft": "dflash2", "draft_model": Path("d")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"draft": "magic"}, "draft is 'magic'; allowed: none, lookup"),
        ({"draft_tokens": 0}, "draft-tokens is 0; allowed: 1 to 31"),
        ({"draft_tokens": 32}, "draft-tokens is 32; allowed: 1 to 31"),
        ({"lookup_min": 13}, "lookup-min is 13; allowed: 1 to 12"),
        ({"threads": -1}, "threads is -1; allowed: 1 to 256"),
        ({"kv_cache_dtype": "fp8"}, "kv-cache-dtype is 'fp8'; allowed: auto, float32, float16, fp8_e4m3, fp8_e5m2"),
        ({"max_model_len": 1}, "max-model-len is 1; allowed: 2 or more"),
        ({"draft": "dflash2"}, "draft is 'dflash2' with draft-model None; give its folder with draft-model"),
        ({"draft_model": Path("d")}, "draft is 'none' with draft-model d; leave draft-model out"),
        ({"rejection": "none"}, "rejection is 'none'; allowed: dense, sparse"),
        ({"context_pipeline": True}, "context-pipeline (VLLM_SM70_DFLASH2_CONTEXT_PIPELINE) with draft 'none'"),
        (
            {**MODEL, "context_kv_graph": True},
            "context-kv-graph (VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH) with draft 'dflash2' on cpu; allowed: with a draft",
        ),
        ({"device": "cuda", "context_kv_graph": True}, "with draft 'none' on cuda; allowed: with a draft model on"),
        ({**MODEL, "draft": "dflash2+lookup", "fusion_weak": 7}, "fusion-weak is 7; allowed: 1 to 6"),
        ({**MODEL, "draft": "dflash2+lookup", "fusion_strong": 13}, "fusion-strong is 13; allowed: 1 to 12"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        EngineConfig(**wrong)


def test_a_round_reserves_one_row_more_than_it_drafts() -> None:
    assert EngineConfig().verify_width == 1
    assert EngineConfig(draft="lookup", draft_tokens=7).verify_width == 8


def test_environment() -> None:
    defaults = read_environment({"SM70_MODEL": "/models/x.gguf", "SM70_THREADS": "3"})
    assert (defaults.model, defaults.threads) == (Path("/models/x.gguf"), 3)
    assert read_environment({}).model is None
    pipeline = "VLLM_SM70_DFLASH2_CONTEXT_PIPELINE"
    assert read_environment({pipeline: "1"}).context_pipeline
    assert not read_environment({pipeline: "0"}).context_pipeline
    assert read_environment({"VLLM_SM70_DFLASH2_CONTEXT_KV_GRAPH": "1"}).context_kv_graph
    with pytest.raises(InputError, match=f"{pipeline} is 'yes'; allowed: 0, 1"):
        read_environment({pipeline: "yes"})
    with pytest.raises(InputError, match="SM70_THREADS is 'many'; allowed: a whole number"):
        read_environment({"SM70_THREADS": "many"})
