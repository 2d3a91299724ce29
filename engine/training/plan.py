"""What a run of the recipe may spend, and on which sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.training.sizes import VOCAB, draft_config, target_config


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run may spend. ``max_steps`` and small ``rows`` are for rehearsals."""

    work: Path
    teacher: Path
    device: str
    seed: int = 1
    text_seconds: float = 130.0
    target_seconds: float = 260.0
    quantised_seconds: float = 35.0
    own_text_seconds: float = 40.0
    draft_seconds: float = 165.0
    rows: int = 8192
    tokens_a_step: int = 32_768
    draft_tokens_a_step: int = 16_384
    max_steps: int | None = None
    questions: int | None = None
    eager: bool = False
    vocab: int = VOCAB
    target_sizes: Mapping[str, Any] = field(default_factory=target_config)
    draft_sizes: Mapping[str, Any] = field(default_factory=draft_config)

    @property
    def compute(self) -> torch.dtype:
        """What products are computed in."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32
