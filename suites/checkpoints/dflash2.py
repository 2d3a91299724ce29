"""Writes a small random DFlash2 draft model for a given target, in the format of `engine.model.dflash2_weights`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

BLOCK = 8
CANDIDATES = 16


def draft_config(target: Mapping[str, Any], **special: Any) -> dict[str, Any]:
    """A config of two layers (one sliding, one full) for the target whose config is given; ``special`` goes to
    ``dflash_config``.
    """
    return {
        "architectures": ["DFlash2DraftModel"],
        "vocab_size": target["vocab_size"],
        "hidden_size": target["hidden_size"],
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000.0,
        "max_position_embeddings": target["max_position_embeddings"],
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 24,
        "is_causal": False,
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": {
            "block_size": BLOCK,
            "mask_token_id": 3,
            "target_layer_ids": [0, target["num_hidden_layers"] - 2],
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 12,
            "selector_top_k": CANDIDATES,
            **special,
        },
    }


def random_draft(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of the model, float32 values in fp64, sized so that no part drowns another."""
    rng = np.random.default_rng(seed)
    special = config["dflash_config"]
    vocab, hidden, inner, dim = (config[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads, rank = config["num_attention_heads"], config["num_key_value_heads"], special["selector_rank"]
    taps, groups = special["conv_kernel_size"], hidden // special["conv_group_size"]

    def matrix(*shape: int) -> np.ndarray:
        values: np.ndarray = rng.normal(size=shape) * shape[-1] ** -0.5
        return values

    def norm(size: int) -> np.ndarray:
        values: np.ndarray = 1 + 0.3 * rng.normal(size=size)
        return values

    def base() -> np.ndarray:
        """Near the identity: the row itself, and a little of the rows before."""
        values: np.ndarray = 0.3 * rng.normal(size=(2, taps, hidden))
        values[:, 0] += 1
        return values

    tensors = {
        "fc.weight": matrix(hidden, len(special["target_layer_ids"]) * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
        "candidate_selector.hidden_projection.weight": matrix(rank, hidden),
        "candidate_selector.predecessor_codebook": rng.normal(size=(vocab, rank)),
        "candidate_selector.successor_codebook": rng.normal(size=(vocab, rank)),
    }
    for index in range(config["num_hidden_layers"]):
        prefix = f"layers.{index}."
        tensors |= {
            f"{prefix}input_layernorm.weight": norm(hidden),
            f"{prefix}post_attention_layernorm.weight": norm(hidden),
            f"{prefix}self_attn.q_proj.weight": matrix(heads * dim, hidden),
            f"{prefix}self_attn.k_proj.weight": matrix(kv_heads * dim, hidden),
            f"{prefix}self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
            f"{prefix}self_attn.o_proj.weight": matrix(hidden, heads * dim),
            f"{prefix}self_attn.q_norm.weight": norm(dim),
            f"{prefix}self_attn.k_norm.weight": norm(dim),
            f"{prefix}mlp.gate_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.up_proj.weight": matrix(inner, hidden),
            f"{prefix}mlp.down_proj.weight": matrix(hidden, inner),
        }
        for conv in ("attention_conv", "mlp_conv"):
            tensors[f"{prefix}{conv}.base_kernel"] = base()
            tensors[f"{prefix}{conv}.kernel_projection.weight"] = 0.3 * matrix(2 * taps * groups, hidden)
    return {name: tensor.astype(np.float32).astype(np.float64) for name, tensor in tensors.items()}


def write_draft(
    folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any], dtype: torch.dtype = torch.float32
) -> Path:
    """``folder`` with both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: torch.from_numpy(tensor).to(dtype).contiguous() for name, tensor in tensors.items()}
    save_file(weights, folder / "model.safetensors")
    return folder
