"""The target as a module with the checkpoint's own parameter names: whole texts in, logits and taps out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as torch_functional
from torch import nn

from engine.linear import nvfp4
from engine.model.decoder import rope_table
from engine.model.hybrid_config import HybridConfig, LayerKind
from engine.training import gdn

# Channels after the turned ones whose keys are stored this much larger, and queries smaller by as much: the product is
# the same, and the KV cache has the outliers that large models grow.
OUTLIER_CHANNELS = (40, 50)
OUTLIER_FACTOR = 8.0


class Table(nn.Module):
    """A parameter named ``weight``, for names that the checkpoint nests."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


class Norm(nn.Module):
    """RMS norm whose weight is stored as its distance from 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 inside."""
        return gdn.rms_norm(x, 1 + self.weight, self._eps)


class Projection(nn.Module):
    """A weight without bias; while ``quantised`` its product is that of the nearest NVFP4 weight."""

    def __init__(self, n: int, k: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, k) * scale)
        self.quantised: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., k] -> [..., n]."""
        weight = self.weight if self.quantised is None else self.quantised
        return torch_functional.linear(x, weight.to(x.dtype))


class GdnMixer(nn.Module):
    """Gated DeltaNet over whole texts."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        sizes, hidden = config.gdn, config.hidden_size
        self._sizes, self._eps = sizes, config.rms_eps
        self.in_proj_qkv = Projection(sizes.conv_dim, hidden, hidden**-0.5)
        self.in_proj_z = Projection(sizes.values, hidden, hidden**-0.5)
        self.in_proj_b = Projection(sizes.value_heads, hidden, hidden**-0.5)
        self.in_proj_a = Projection(sizes.value_heads, hidden, hidden**-0.5)
        self.out_proj = Projection(hidden, sizes.values, sizes.values**-0.5 / (2 * config.num_layers) ** 0.5)
        self.conv1d = Table(torch.randn(sizes.conv_dim, 1, sizes.conv_width) * sizes.conv_width**-0.5)
        # Decays from a few tokens to a few hundred, spread over the heads.
        self.A_log = nn.Parameter(torch.linspace(1.0, 16.0, sizes.value_heads).log())
        lifetimes = torch.logspace(-3, -1, sizes.value_heads)
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(lifetimes)))
        self.norm = Table(torch.ones(sizes.value_dim))

    @property
    def fused(self) -> Sequence[Sequence[Projection]]:
        """Projections that are one product in the engine: they share a global scale."""
        return ((self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a), (self.out_proj,))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """x [B, T, H] -> [B, T, H]."""
        sizes = self._sizes
        mixed = gdn.causal_conv(self.in_proj_qkv(x), self.conv1d.weight[:, 0])
        q, k, v = torch.split(mixed, [sizes.keys, sizes.keys, sizes.values], dim=-1)
        q, k, v = (
            part.view(*part.shape[:-1], -1, width)
            for part, width in ((q, sizes.key_dim), (k, sizes.key_dim), (v, sizes.value_dim))
        )
        log_decay, beta = self.gates(self.in_proj_a(x), self.in_proj_b(x))
        core = gdn.chunked(q, k, v, log_decay, beta)
        out: torch.Tensor = self.out_proj(self.gated_norm(core, self.in_proj_z(x)))
        return out

    def gates(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log decay and beta, float32."""
        return -self.A_log.exp() * torch_functional.softplus(a.float() + self.dt_bias), b.float().sigmoid()

    def gated_norm(self, core: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Norm over each head, times silu(z); heads side by side."""
        normed = gdn.rms_norm(core, self.norm.weight, self._eps).flatten(-2)
        return (normed * torch_functional.silu(z.float())).to(z.dtype)


class AttentionMixer(nn.Module):
    """Full attention with an output gate."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        sizes, hidden = config.attention, config.hidden_size
        self._sizes = sizes
        # What turned keys and values become in a cache; nothing happens to them where it is None.
        self.kept_as: Callable[[torch.Tensor], torch.Tensor] | None = None
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = Projection(2 * queries, hidden, hidden**-0.5)
        self.k_proj = Projection(keys, hidden, hidden**-0.5)
        self.v_proj = Projection(keys, hidden, hidden**-0.5)
        self.o_proj = Projection(hidden, queries, queries**-0.5 / (2 * config.num_layers) ** 0.5)
        self.q_norm, self.k_norm = Norm(sizes.head_dim, config.rms_eps), Norm(sizes.head_dim, config.rms_eps)
        for channel in OUTLIER_CHANNELS:
            if sizes.rotary_dim <= channel < sizes.head_dim:
                self.k_norm.weight.data[channel] = OUTLIER_FACTOR - 1
                self.q_norm.weight.data[channel] = 1 / OUTLIER_FACTOR - 1

    @property
    def fused(self) -> Sequence[Sequence[Projection]]:
        """Projections that are one product in the engine (the gate is cut out of ``q_proj``): one global scale."""
        return ((self.q_proj, self.k_proj, self.v_proj), (self.o_proj,))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """x [B, T, H] -> [B, T, H]; ``turn`` is the table of cosines and sines of T positions."""
        query, gate, key, value = self.heads(x)
        group = self._sizes.num_heads // self._sizes.num_kv_heads
        query, key = rotate(query, turn).to(value.dtype).transpose(1, 2), rotate(key, turn).to(value.dtype)
        if self.kept_as is not None:
            key, value = self.kept_as(key), self.kept_as(value)
        key, value = (part.repeat_interleave(group, dim=2).transpose(1, 2) for part in (key, value))
        attended = torch_functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.leave(attended.transpose(1, 2), gate)

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normed query [..., Hq, D], gate, normed key [..., Hkv, D] (neither turned) and value."""
        dim = self._sizes.head_dim
        query, gate = self.q_proj(x).unflatten(-1, (-1, 2, dim)).unbind(dim=-2)
        key, value = self.k_proj(x).unflatten(-1, (-1, dim)), self.v_proj(x).unflatten(-1, (-1, dim))
        return self.q_norm(query), gate, self.k_norm(key), value

    def leave(self, attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Gate and output projection of attended heads [..., Hq, D]."""
        out: torch.Tensor = self.o_proj((attended * gate.sigmoid()).flatten(-2))
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Projection(inner, hidden, hidden**-0.5)
        self.up_proj = Projection(inner, hidden, hidden**-0.5)
        self.down_proj = Projection(hidden, inner, inner**-0.5 / (2 * config.num_layers) ** 0.5)

    @property
    def fused(self) -> Sequence[Sequence[Projection]]:
        """See the mixers."""
        return ((self.gate_proj, self.up_proj), (self.down_proj,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., H] -> [..., H]."""
        out: torch.Tensor = self.down_proj(torch_functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A token mixer and an MLP, each after its norm; named as the checkpoint names them."""

    def __init__(self, config: HybridConfig, kind: LayerKind) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_eps)
        if kind is LayerKind.GDN:
            self.linear_attn = GdnMixer(config)
        else:
            self.self_attn = AttentionMixer(config)
        self.mlp = Mlp(config)

    @property
    def mixer(self) -> GdnMixer | AttentionMixer:
        """Whichever it has."""
        found = self._modules.get("linear_attn") or self._modules["self_attn"]
        assert isinstance(found, GdnMixer | AttentionMixer)
        return found

    def forward(self, x: torch.Tensor, turn: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
        """The residual stream stays float32; the sublayers compute in ``compute``."""
        x = x + self.mixer(self.input_layernorm(x).to(compute), turn)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x).to(compute))
        return out


class Target(nn.Module):
    """The whole model. ``state_dict`` names are those of the checkpoint without the leading ``model.``."""

    turn: torch.Tensor  # cosines and sines of every position

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Table(torch.randn(config.vocab_size, config.hidden_size) * 0.05)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layers)
        self.norm = Norm(config.hidden_size, config.rms_eps)
        attention = config.attention
        self.register_buffer(
            "turn", rope_table(config.context_length, attention.rotary_dim, attention.rope_theta), persistent=False
        )
        self.compute = torch.float32

    def forward(self, token_ids: torch.Tensor, taps: Sequence[int] = ()) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Tokens [B, T] -> logits [B, T, V] and the residual stream after the layers ``taps``, [B, T, H] each."""
        x = self.embed_tokens.weight[token_ids].float()
        turn = self.turn[: token_ids.shape[1]]
        kept = []
        for index, layer in enumerate(self.layers):
            x = layer(x, turn, self.compute)
            if index in taps:
                kept.append(x)
        return self.head(x), kept

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of residual rows, float32."""
        return torch_functional.linear(self.norm(x), self.embed_tokens.weight)

    def products(self) -> Iterator[Sequence[Projection]]:
        """Groups of projections that share a global scale."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield from layer.mixer.fused
            yield from layer.mlp.fused

    def quantise(self) -> None:
        """Let every projection use its nearest NVFP4 weight; gradients pass straight through to the weight."""
        for group in self.products():
            scale = nvfp4.global_scale_of([projection.weight for projection in group])
            for projection in group:
                nearest = dequantise(*nvfp4.quantize(projection.weight.detach(), scale), scale)
                exact = projection.weight
                projection.quantised = exact + (nearest - exact).detach()

    def release(self) -> None:
        """Back to the exact weights."""
        for group in self.products():
            for projection in group:
                projection.quantised = None


def dequantise(codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """What `nvfp4.quantize` gave, as numbers [n, k]."""
    return (
        nvfp4.code_values(codes.device)[codes.long()]
        * scales.float().repeat_interleave(nvfp4.BLOCK, dim=1)
        * global_scale
    )


def rotate(heads: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + R/2) of the first R of ``heads`` [..., T, H, D] by ``table`` [T, R/2, 2]."""
    half = table.shape[-2]
    cos, sin = table[..., 0].unsqueeze(-2), table[..., 1].unsqueeze(-2)
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
