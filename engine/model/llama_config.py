"""The sizes and constants of a Llama model. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of a Llama model. ``rope_interleaved``: pairs are (2i, 2i+1), as GGUF files have them."""

    vocab_size: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_eps: float
    rope_interleaved: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} query heads over {self.num_kv_heads} KV heads; allowed: whole groups")
