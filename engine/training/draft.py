"""The DFlash2 draft as a module with the checkpoint's own parameter names: many blocks of a text at once.

The forward is that of `engine.model.dflash2`. Blocks start at chosen anchors of a text; a block's rows see the context
before its anchor and each other. The candidate lattice is trained over the whole vocabulary with the text's own
predecessors: the engine keeps of the same scores the rows of the best candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as torch_functional
from torch import nn

from engine.model.decoder import rope_table
from engine.model.dflash2_config import DFlash2Config
from engine.training import e4m3
from engine.training.gdn import rms_norm
from engine.training.target import rotate


class DraftNorm(nn.Module):
    """RMS norm whose weight is the factor itself."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 inside."""
        return rms_norm(x, self.weight, self._eps)


class Dense(nn.Module):
    """A weight without bias, multiplied in the type of its input, as it will be stored."""

    def __init__(self, n: int, k: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, k) * scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., k] -> [..., n]."""
        return torch_functional.linear(x, e4m3.as_stored(self.weight).to(x.dtype))


class GroupedConv(nn.Module):
    """Both sides of the grouped dynamic convolution around a sublayer."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self._config = config
        base = torch.zeros(2, config.conv_kernel, config.hidden_size)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        rows = 2 * config.conv_kernel * config.conv_groups
        self.kernel_projection = Dense(rows, config.hidden_size, 0.1 * config.hidden_size**-0.5)

    def coefficients(self, normed: torch.Tensor) -> torch.Tensor:
        """From a sublayer's normed input [B, N, block, H] -> [B, N, block, 2, taps, groups, 1]."""
        config = self._config
        shape = (*normed.shape[:-1], 2, config.conv_kernel, config.conv_groups, 1)
        out: torch.Tensor = self.kernel_projection(normed).view(shape)
        return out

    def forward(self, x: torch.Tensor, coefficients: torch.Tensor, side: int) -> torch.Tensor:
        """x [B, N, block, H]; a row's tap looks back within its block."""
        config = self._config
        groups = (config.conv_groups, config.conv_group)
        fixed = self.base_kernel[side].to(x.dtype).view(config.conv_kernel, *groups)
        rows = x.view(*x.shape[:-1], *groups)
        out = (fixed[0] + coefficients[..., side, 0, :, :]) * rows
        for tap in range(1, config.conv_kernel):
            before = torch_functional.pad(rows[:, :, :-tap], (0, 0, 0, 0, tap, 0))
            out = out + (fixed[tap] + coefficients[..., side, tap, :, :]) * before
        return out.flatten(-2)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """N blocks of every text of a batch: the same anchors in each."""

    anchors: torch.Tensor  # int64 [N], ascending positions
    positions: torch.Tensor  # int64 [N, block]
    visible: torch.Tensor  # bool [N * block, T + N * block]: context of T tokens, then the blocks' own rows

    @classmethod
    def at(cls, anchors: torch.Tensor, block_size: int, context: int) -> Blocks:
        """Blocks at ``anchors`` over a context of ``context`` tokens."""
        positions = anchors[:, None] + torch.arange(block_size, device=anchors.device)
        block_of_row = torch.arange(len(anchors), device=anchors.device).repeat_interleave(block_size)
        in_front = torch.arange(context, device=anchors.device) < anchors[block_of_row][:, None]
        own = block_of_row[:, None] == block_of_row
        return cls(anchors, positions, torch.cat((in_front, own), dim=1))


class DraftAttention(nn.Module):
    """Block rows attend to the context's keys and to each other."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self._dim, self._heads, self._kv_heads = dim, config.num_heads, config.num_kv_heads
        self.q_proj = Dense(config.num_heads * dim, hidden, hidden**-0.5)
        self.k_proj = Dense(config.num_kv_heads * dim, hidden, hidden**-0.5)
        self.v_proj = Dense(config.num_kv_heads * dim, hidden, hidden**-0.5)
        self.o_proj = Dense(hidden, config.num_heads * dim, hidden**-0.5 / (2 * config.num_layers) ** 0.5)
        self.q_norm, self.k_norm = DraftNorm(dim, config.rms_eps), DraftNorm(dim, config.rms_eps)

    def keys_values(self, x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turned keys and values of rows [B, R, H]: [B, R, Hkv, D] each; context and block alike."""
        key = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self._dim))), turn)
        return key, self.v_proj(x).unflatten(-1, (-1, self._dim))

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], visible: torch.Tensor
    ) -> torch.Tensor:
        """Block rows ``x`` [B, R, H] over ``context`` [B, T, H]; ``turns`` of the context and of the rows."""
        query = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self._dim))), turns[1])
        parts = [self.keys_values(rows, turn) for rows, turn in ((context, turns[0]), (x, turns[1]))]
        group = self._heads // self._kv_heads
        key, value = (torch.cat(pair, dim=1).repeat_interleave(group, dim=2) for pair in zip(*parts, strict=True))
        query, key, value = (part.transpose(1, 2).to(x.dtype) for part in (query, key, value))
        attended = torch_functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return out


class DraftMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Dense(inner, hidden, hidden**-0.5)
        self.up_proj = Dense(inner, hidden, hidden**-0.5)
        self.down_proj = Dense(hidden, inner, inner**-0.5 / (2 * config.num_layers) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., H] -> [..., H]."""
        out: torch.Tensor = self.down_proj(torch_functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftDecoderLayer(nn.Module):
    """Attention and an MLP, each between the two sides of its convolution."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.input_layernorm = DraftNorm(config.hidden_size, config.rms_eps)
        self.post_attention_layernorm = DraftNorm(config.hidden_size, config.rms_eps)
        self.attention_conv, self.mlp_conv = GroupedConv(config), GroupedConv(config)
        self.self_attn = DraftAttention(config)
        self.mlp = DraftMlp(config)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """x float32 [B, N, block, H]; the sublayers compute in the context's type."""
        normed = self.input_layernorm(x).to(context.dtype)
        coefficients = self.attention_conv.coefficients(normed)
        rows = self.attention_conv(normed, coefficients, 0).flatten(1, 2)
        attended = self.self_attn(rows, context, turns, visible).view(normed.shape)
        x = x + self.attention_conv(attended, coefficients, 1)
        normed = self.post_attention_layernorm(x).to(context.dtype)
        coefficients = self.mlp_conv.coefficients(normed)
        out: torch.Tensor = x + self.mlp_conv(self.mlp(self.mlp_conv(normed, coefficients, 0)), coefficients, 1)
        return out


class CandidateSelector(nn.Module):
    """Rank-r scores of a candidate after its predecessor."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.hidden_projection = Dense(config.selector_rank, config.hidden_size, config.hidden_size**-0.5)
        shape, scale = (config.vocab_size, config.selector_rank), config.selector_rank**-0.25 * 0.3
        self.predecessor_codebook = nn.Parameter(torch.randn(shape) * scale)
        self.successor_codebook = nn.Parameter(torch.randn(shape) * scale)

    def forward(self, hidden: torch.Tensor, predecessors: torch.Tensor) -> torch.Tensor:
        """Scores of every token after ``predecessors`` int64 [...]; ``hidden`` [..., H] -> [..., V]."""
        before = e4m3.as_stored(self.predecessor_codebook)[predecessors]
        gate = self.hidden_projection(hidden) * before.to(hidden.dtype)
        return torch_functional.linear(gate, e4m3.as_stored(self.successor_codebook).to(hidden.dtype))


class Draft(nn.Module):
    """The whole draft model. ``state_dict`` names are the checkpoint's."""

    turn: torch.Tensor  # cosines and sines of every position

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        if any(window is not None for window in config.windows) or config.rope_interleaved:
            raise ValueError(
                "a draft with sliding windows or interleaved RoPE; this recipe trains full attention alone"
            )
        self.config = config
        hidden, taps = config.hidden_size, len(config.target_layer_ids)
        self.fc = Dense(hidden, taps * hidden, (taps * hidden) ** -0.5)
        self.hidden_norm = DraftNorm(hidden, config.rms_eps)
        self.layers = nn.ModuleList(DraftDecoderLayer(config) for _ in range(config.num_layers))
        self.norm = DraftNorm(hidden, config.rms_eps)
        self.candidate_selector = CandidateSelector(config)
        turn = rope_table(config.context_length, config.head_dim, config.rope_theta)
        self.register_buffer("turn", turn, persistent=False)
        self.compute = torch.float32

    def forward(
        self, token_ids: torch.Tensor, taps: torch.Tensor, embedding: torch.Tensor, blocks: Blocks
    ) -> torch.Tensor:
        """Normed hidden rows of the drafted positions, float32 [B, N, K, H].

        ``token_ids`` [B, T]: the anchors are read from it. ``taps`` [B, T, taps * H]; ``embedding`` [V, H]
        is the target's.
        """
        config = self.config
        context = self.hidden_norm(self.fc(taps.to(self.compute))).to(self.compute)
        masks = torch.full((len(token_ids), *blocks.positions.shape), config.mask_token_id, device=token_ids.device)
        masks[:, :, 0] = token_ids[:, blocks.anchors]
        x = embedding[masks].float() * config.embedding_scale
        turns = self.turn[: token_ids.shape[1]], self.turn[blocks.positions.flatten()]
        for layer in self.layers:
            x = layer(x, context, turns, blocks.visible)
        out: torch.Tensor = self.norm(x[:, :, 1:])
        return out
