"""The Llama forward in plain torch: no cache, no native code, weights dequantised by the ``gguf`` package.

This is what "the right answer" means for a token: float32 everywhere, every op as the paper writes it. It shares the
GGUF reader and the sizes with the engine and nothing else. 540 MB for SmolLM2; only tests and suites load it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as torch_functional

from engine.model.gguf_file import GgufFile, dequantize
from engine.model.weights_gguf import llama_config


class LlamaReference:
    """All weights as float32 tensors ``[out, in]``."""

    def __init__(self, file: GgufFile) -> None:
        self.config = llama_config(file)
        self._weights = {name: torch.from_numpy(dequantize(tensor).copy()) for name, tensor in file.tensors.items()}
        self._weights.setdefault("output.weight", self._weights["token_embd.weight"])

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits after every token of a text, float32 ``[T, vocab]``."""
        config = self.config
        positions = torch.arange(len(token_ids))
        x = self._weights["token_embd.weight"][torch.tensor(token_ids)]
        for index in range(config.num_layers):
            block = f"blk.{index}."
            x = x + self._attention(self._norm(x, f"{block}attn_norm"), positions, block)
            x = x + self._feed_forward(self._norm(x, f"{block}ffn_norm"), block)
        return self._linear(self._norm(x, "output_norm"), "output")

    def greedy(self, token_ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """``count`` greedy tokens, and the gap between the best two logits after each: how sure each token is."""
        text, gaps = list(token_ids), []
        for _ in range(count):
            best = self.logits(text)[-1].topk(2)
            text.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
        return text[len(token_ids) :], gaps

    def _attention(self, x: torch.Tensor, positions: torch.Tensor, block: str) -> torch.Tensor:
        config = self.config
        heads = {
            name: self._linear(x, f"{block}attn_{name}").view(len(x), -1, config.head_dim).transpose(0, 1)
            for name in "qkv"
        }
        query, key = self._rope(heads["q"], positions), self._rope(heads["k"], positions)
        group = config.num_heads // config.num_kv_heads
        key, value = key.repeat_interleave(group, dim=0), heads["v"].repeat_interleave(group, dim=0)
        scores = query @ key.transpose(1, 2) * config.head_dim**-0.5
        hidden_future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        attended = scores.masked_fill(hidden_future, -torch.inf).softmax(dim=-1) @ value
        return self._linear(attended.transpose(0, 1).flatten(1), f"{block}attn_output")

    def _feed_forward(self, x: torch.Tensor, block: str) -> torch.Tensor:
        gate = torch_functional.silu(self._linear(x, f"{block}ffn_gate"))
        return self._linear(gate * self._linear(x, f"{block}ffn_up"), f"{block}ffn_down")

    def _rope(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn the pairs (2i, 2i+1): GGUF's converter reordered the rows of q and k for that."""
        exponent = torch.arange(0, self.config.head_dim, 2, dtype=torch.float64) / self.config.head_dim
        angle = positions.double().outer(self.config.rope_theta**-exponent)
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)
        pairs = torch.view_as_complex(heads.reshape(*heads.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.config.rms_eps)
        return x * scale * self._weights[f"{name}.weight"]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._weights[f"{name}.weight"].T
