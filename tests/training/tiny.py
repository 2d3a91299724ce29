"""A recipe small enough for a test: sizes, text, and a run in seconds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from engine.training import text
from engine.training.plan import Plan
from engine.training.recipe import Recipe
from engine.training.sizes import draft_config, target_config

VOCAB = 300
_WORDS = ("the", "a", "fox", "lake", "runs", "over", "under", "slowly", "near", "old", "red", "house", "tree", "sings")


def target_sizes() -> dict[str, Any]:
    """Four layers, every width a multiple of NVFP4's 32."""
    return target_config() | {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 16,
        "max_position_embeddings": 1024,
    }


def draft_sizes() -> dict[str, Any]:
    """One layer over two taps."""
    config = draft_config()
    return config | {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1056,
        "num_target_layers": 4,
        "dflash_config": config["dflash_config"] | {"target_layer_ids": [1, 2], "selector_rank": 8},
    }


def write_text(work: Path, count: int = 300) -> None:
    """Conversations of a small grammar, where the text phase would leave its own."""
    draw = random.Random(0)
    work.mkdir(parents=True, exist_ok=True)

    def words(number: int) -> str:
        return " ".join(draw.choice(_WORDS) for _ in range(number))

    made = [text.Conversation(words(4), words(draw.randint(6, 30))) for _ in range(count)]
    text.write(made[2:], work / "text.jsonl.gz")
    text.write(made[:2], work / "held_out.jsonl.gz")


def run(work: Path, **changes: Any) -> Recipe:
    """Every phase after the text, a few steps each."""
    write_text(work)
    plan: dict[str, Any] = {
        "work": work,
        "teacher": Path("not-needed"),
        "device": "cpu",
        "rows": 4,
        "tokens_a_step": 256,
        "draft_tokens_a_step": 256,
        "max_steps": 3,
        "vocab": VOCAB,
        "target_sizes": target_sizes(),
        "draft_sizes": draft_sizes(),
    }
    recipe = Recipe(Plan(**(plan | changes)))
    recipe.run()
    return recipe
