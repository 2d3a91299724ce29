"""Writes a small random hybrid checkpoint, in either layout, with a tokenizer of single bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 99
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000.0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def config_with_heads(times: int) -> dict[str, Any]:
    """`CONFIG` with ``times`` as many heads of each kind."""
    kinds = ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "linear_num_value_heads")
    return CONFIG | {kind: CONFIG[kind] * times for kind in kinds}


def random_tensors(
    seed: int = 0,
    *,
    hidden: int = 48,
    inner: int = 80,
    value_dim: int = 12,
    times_heads: int = 1,
    attention: tuple[int, int, int] = (4, 2, 32),
) -> dict[str, np.ndarray]:
    """Tensors section by section, float32 values in fp64; sized so that no layer drowns another.

    ``attention``: query heads, KV heads and head size, the heads before ``times_heads`` is applied.
    """
    rng = np.random.default_rng(seed)
    heads, kv_heads, dim = attention[0] * times_heads, attention[1] * times_heads, attention[2]
    keys, value_heads = 32 * times_heads, 6 * times_heads
    values = value_heads * value_dim

    def matrix(*shape: int) -> np.ndarray:
        values: np.ndarray = rng.normal(size=shape) * shape[-1] ** -0.5
        return values

    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, hidden) * 7,
        "model.norm.weight": matrix(hidden),
        "lm_head.weight": matrix(VOCAB, hidden) * 3,
    }
    for index in range(4):
        prefix = f"model.layers.{index}."
        tensors[f"{prefix}input_layernorm.weight"] = matrix(hidden)
        tensors[f"{prefix}post_attention_layernorm.weight"] = matrix(hidden)
        tensors |= {f"{prefix}mlp.{name}_proj.weight": matrix(inner, hidden) for name in ("gate", "up")}
        tensors[f"{prefix}mlp.down_proj.weight"] = matrix(hidden, inner)
        if index == 3:
            tensors |= {
                f"{prefix}self_attn.q_proj.weight": matrix(2 * heads * dim, hidden),
                f"{prefix}self_attn.k_proj.weight": matrix(kv_heads * dim, hidden),
                f"{prefix}self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
                f"{prefix}self_attn.o_proj.weight": matrix(hidden, heads * dim),
                f"{prefix}self_attn.q_norm.weight": matrix(dim),
                f"{prefix}self_attn.k_norm.weight": matrix(dim),
            }
        else:
            gdn = f"{prefix}linear_attn."
            tensors |= {
                f"{gdn}in_proj_qkv.weight": matrix(2 * keys + values, hidden),
                f"{gdn}in_proj_z.weight": matrix(values, hidden),
                f"{gdn}in_proj_b.weight": matrix(value_heads, hidden),
                f"{gdn}in_proj_a.weight": matrix(value_heads, hidden),
                f"{gdn}conv1d.weight": matrix(2 * keys + values, 1, 4),
                f"{gdn}A_log": matrix(value_heads),
                f"{gdn}dt_bias": matrix(value_heads),
                f"{gdn}norm.weight": 1 + matrix(value_dim),
                f"{gdn}out_proj.weight": matrix(hidden, values),
            }
    return {name: tensor.astype(np.float32).astype(np.float64) for name, tensor in tensors.items()}


def fuse_projections(tensors: dict[str, np.ndarray], *, times_heads: int = 1) -> dict[str, np.ndarray]:
    """The other layout: rows interleaved by key-head group, one group after another."""
    keys = 32 * times_heads
    fused = dict(tensors)
    for index in range(3):
        gdn = f"model.layers.{index}.linear_attn."
        q, k, v = np.split(fused.pop(f"{gdn}in_proj_qkv.weight"), [keys, 2 * keys])
        z, b, a = (fused.pop(f"{gdn}in_proj_{name}.weight") for name in "zba")
        groups, small = [], []
        for group in range(2 * times_heads):
            key_rows, value_rows = slice(16 * group, 16 * (group + 1)), slice(36 * group, 36 * (group + 1))
            groups += [q[key_rows], k[key_rows], v[value_rows], z[value_rows]]
            small += [b[3 * group : 3 * group + 3], a[3 * group : 3 * group + 3]]
        fused[f"{gdn}in_proj_qkvz.weight"] = np.concatenate(groups)
        fused[f"{gdn}in_proj_ba.weight"] = np.concatenate(small)
    return fused


def write_checkpoint(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] | None = None) -> Path:
    """``folder`` as Hugging Face lays a model out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    weights = {name: torch.from_numpy(tensor).float().contiguous() for name, tensor in tensors.items()}
    save_file(weights, folder / "model.safetensors")
    alphabet = [chr(code) for code in range(0x21, 0x21 + VOCAB - 4)]
    vocabulary = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "Ġ": 3}
    vocabulary |= {character: index + 4 for index, character in enumerate(alphabet[:90])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in list(vocabulary)[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": "{{ messages[0]['content'] }}"})
    )
    return folder
