"""One token a step for many rows: the teacher and the target, each with a static cache, for `decode_loop`."""

from __future__ import annotations

import torch
import torch.nn.functional as torch_functional

from engine.model.decoder import rope_table
from engine.model.gguf_file import GgufFile, dequantize
from engine.model.hybrid_config import LayerKind
from engine.model.weights_gguf import llama_config
from engine.training.decode_attention import decode_attention
from engine.training.gdn import l2_norm
from engine.training.target import AttentionMixer, GdnMixer, Layer, Target, rotate


class TeacherRows:
    """A Llama model out of a GGUF file, dequantised; every row starts after the same prefix."""

    def __init__(
        self, file: GgufFile, prefix: list[int], rows: int, length: int, *, device: str, dtype: torch.dtype
    ) -> None:
        config = self._config = llama_config(file)
        self.first_position = len(prefix)
        names = {
            name: torch.from_numpy(dequantize(tensor).copy()).to(device, dtype) for name, tensor in file.tensors.items()
        }
        self._embedding = names["token_embd.weight"]
        self._head = names.get("output.weight", self._embedding)
        self._output_norm = names["output_norm.weight"]
        self._layers = [
            {
                "attn_norm": names[f"blk.{index}.attn_norm.weight"],
                "qkv": torch.cat([names[f"blk.{index}.attn_{part}.weight"] for part in "qkv"]),
                "attn_output": names[f"blk.{index}.attn_output.weight"],
                "ffn_norm": names[f"blk.{index}.ffn_norm.weight"],
                "gate_up": torch.cat([names[f"blk.{index}.ffn_{part}.weight"] for part in ("gate", "up")]),
                "ffn_down": names[f"blk.{index}.ffn_down.weight"],
            }
            for index in range(config.num_layers)
        ]
        self._turn = rope_table(length, config.head_dim, config.rope_theta).to(device, dtype)
        shape = (config.num_layers, 2, rows, config.num_kv_heads, length, config.head_dim)
        self._cache = torch.zeros(shape, device=device, dtype=dtype)
        self._row = torch.arange(rows, device=device)
        with torch.no_grad():
            for position, token in enumerate(prefix):
                at = torch.full((rows,), position, device=device)
                self.step(torch.full((rows,), token, device=device), at)

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See `RowModel`."""
        config, rows = self._config, len(tokens)
        x = self._embedding[tokens]
        turn = self._turn[positions][:, None]  # [B, 1, D / 2, 2]
        for index, layer in enumerate(self._layers):
            qkv = torch_functional.linear(self._norm(x, layer["attn_norm"]), layer["qkv"])
            heads = qkv.view(rows, -1, config.head_dim)
            query, key, value = torch.split(heads, [config.num_heads, config.num_kv_heads, config.num_kv_heads], dim=1)
            keys, values = self._cache[index].unbind()
            keys[self._row, :, positions] = _turned(key, turn)
            values[self._row, :, positions] = value
            attended = decode_attention(_turned(query, turn), keys, values, positions, config.head_dim**-0.5)
            x = x + torch_functional.linear(attended.view(rows, -1), layer["attn_output"])
            gate, up = torch_functional.linear(self._norm(x, layer["ffn_norm"]), layer["gate_up"]).chunk(2, dim=-1)
            x = x + torch_functional.linear(torch_functional.silu(gate) * up, layer["ffn_down"])
        return torch_functional.linear(self._norm(x, self._output_norm), self._head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch_functional.rms_norm(x, (x.shape[-1],), weight, self._config.rms_eps)


def _turned(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (2i, 2i + 1) of [B, heads, D], as GGUF files have them."""
    first, second = heads.view(*heads.shape[:-1], -1, 2).unbind(dim=-1)
    cos, sin = turn.unbind(dim=-1)
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


class TargetRows:
    """The target, token by token."""

    first_position = 0

    def __init__(self, target: Target, rows: int, length: int) -> None:
        config, self._target = target.config, target
        weight = target.embed_tokens.weight
        device, dtype = weight.device, target.compute
        gdn, attention = config.gdn, config.attention
        recurrent, full = config.layers.count(LayerKind.GDN), config.layers.count(LayerKind.ATTENTION)
        self._window = torch.zeros(recurrent, rows, gdn.conv_width - 1, gdn.conv_dim, device=device, dtype=dtype)
        self._state = torch.zeros(recurrent, rows, gdn.value_heads, gdn.key_dim, gdn.value_dim, device=device)
        shape = (full, 2, rows, attention.num_kv_heads, length, attention.head_dim)
        self._cache = torch.zeros(shape, device=device, dtype=dtype)
        self._row = torch.arange(rows, device=device)

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See `RowModel`."""
        target, compute = self._target, self._target.compute
        x = target.embed_tokens.weight[tokens].float()
        going_on = (positions > 0).float()
        recurrent = full = 0
        for layer in target.layers:
            assert isinstance(layer, Layer)
            normed = layer.input_layernorm(x).to(compute)
            if isinstance(layer.mixer, GdnMixer):
                x = x + self._gdn(recurrent, layer.mixer, normed, going_on)
                recurrent += 1
            else:
                x = x + self._attention(full, layer.mixer, normed, positions)
                full += 1
            x = x + layer.mlp(layer.post_attention_layernorm(x).to(compute))
        return target.head(x)

    def _gdn(self, index: int, mixer: GdnMixer, x: torch.Tensor, going_on: torch.Tensor) -> torch.Tensor:
        sizes = self._target.config.gdn
        window = self._window[index]
        rows = torch.cat((window * going_on.to(x.dtype)[:, None, None], mixer.in_proj_qkv(x)[:, None]), dim=1)
        window.copy_(rows[:, 1:])
        mixed = torch_functional.silu((rows * mixer.conv1d.weight[:, 0].T.to(x.dtype)).sum(dim=1))
        q, k, v = torch.split(mixed.float(), [sizes.keys, sizes.keys, sizes.values], dim=-1)
        ratio = sizes.value_heads // sizes.key_heads
        q, k, v = (
            part.view(len(part), -1, width)
            for part, width in ((q, sizes.key_dim), (k, sizes.key_dim), (v, sizes.value_dim))
        )
        q = l2_norm(q).repeat_interleave(ratio, dim=1) * sizes.key_dim**-0.5
        k = l2_norm(k).repeat_interleave(ratio, dim=1)
        log_decay, beta = mixer.gates(mixer.in_proj_a(x), mixer.in_proj_b(x))
        state = self._state[index] * (log_decay.exp() * going_on[:, None])[..., None, None]
        correction = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
        state = state + k[..., None] * correction[..., None, :]
        self._state[index].copy_(state)
        read = (q[..., None, :] @ state)[..., 0, :]
        out: torch.Tensor = mixer.out_proj(mixer.gated_norm(read, mixer.in_proj_z(x)))
        return out

    def _attention(self, index: int, mixer: AttentionMixer, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        sizes = self._target.config.attention
        query, gate, key, value = mixer.heads(x)
        turn = self._target.turn[positions]
        keys, values = self._cache[index].unbind()
        keys[self._row, :, positions] = rotate(key, turn).to(keys.dtype)
        values[self._row, :, positions] = value.to(values.dtype)
        query = rotate(query, turn).to(x.dtype)
        return mixer.leave(decode_attention(query, keys, values, positions, sizes.head_dim**-0.5), gate)
