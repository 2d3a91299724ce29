"""What the trained pair is asked in this scope, as token ids of its own tokenizer, and under which law it answers."""

from __future__ import annotations

import functools
from typing import Any

from engine.model.bundled import quasar_tiny_path
from engine.model.hybrid_config import read_hybrid_config
from engine.model.tokenizer import ChatTokenizer
from engine.model.tokenizer_hf import tokenizer_from_folder
from engine.request import SamplingParams

# Under which the published rounds were drawn.
LAW: dict[str, Any] = {"temperature": 1.0, "top_k": 20, "top_p": 0.95}

QUESTIONS = (
    "What is water made of?",
    "List three fruits and their colors.",
    "Write two sentences about ice for a child.",
    "Why is a robot important? Answer briefly.",
)
_RIVER = "A river is a body of water that flows from one place to another."
_KEEPER = "The old lighthouse keeper walked down to the harbour every morning."
_BOAT = "The children built a small boat out of paper and wood. It sailed across the pond until the evening came."
# Most of a copy is accepted and may be looked up, so rounds of every length come up.
COPIES = (
    f"Repeat the following text word by word:\n{_RIVER} {_KEEPER}",
    "Copy this text exactly:\nHoney is sweet and golden. The children built a small boat out of paper and wood.",
    f"Repeat only the first sentence of this text:\n{_KEEPER} Honey is sweet and golden.",
    f"Repeat the following text word by word:\n{_BOAT}",
)


def asked(message: str) -> list[int]:
    """One user message in the chat template, up to the assistant's first word."""
    tokenizer = _tokenizer()
    return tokenizer.encode(tokenizer.chat_prompt([{"role": "user", "content": message}]))


def plain(text: str) -> list[int]:
    """The text as it is."""
    return _tokenizer().encode(text)


def drawn(max_tokens: int, seed: int, **more: Any) -> SamplingParams:
    """A request under `LAW` that ends where the model ends it, or at ``max_tokens``; ``more`` overrides."""
    return SamplingParams(max_tokens=max_tokens, seed=seed, **{**LAW, **more})


@functools.cache
def _tokenizer() -> ChatTokenizer:
    folder = quasar_tiny_path()
    return tokenizer_from_folder(folder, read_hybrid_config(folder).vocab_size)
