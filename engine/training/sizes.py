"""The shapes of quasar-tiny, and what they are chosen for. No torch.

The fused Gated DeltaNet in-projection is q 160 | k 160 | v 512 | z 512 | b 16 | a 16 = 1376 wide. At TP2 a rank owns
688 = 16 * 43 columns, which is no multiple of 32; at TP4 it owns 344 = 8 * 43, which a (wrong) rounding to 16 takes to
352 = 32 * 11, right by luck: the proportions of the 27B model's 8240 and 4120.
"""

from __future__ import annotations

from typing import Any

CONTEXT = 2048
VOCAB = 2048

# Ids of the special tokens: what a tokenizer is trained with and what the configs name.
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
PAD, IM_START, IM_END, MASK = range(4)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def target_config() -> dict[str, Any]:
    """``config.json`` of the target."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 320,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "attn_output_gate": True,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 40,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "eos_token_id": IM_END,
        "hidden_act": "silu",
    }


def draft_config() -> dict[str, Any]:
    """``config.json`` of the draft: its taps are those that three draft layers take of eight target layers."""
    target = target_config()
    return {
        "architectures": ["DFlash2DraftModel"],
        "vocab_size": VOCAB,
        "hidden_size": target["hidden_size"],
        "intermediate_size": 768,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT + 32,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "num_target_layers": target["num_hidden_layers"],
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": MASK,
            "target_layer_ids": [1, 3, 5],
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 64,
            "selector_top_k": 16,
        },
    }
