"""A small random Llama as a GGUF file, where no model is at hand: ``python -m suites.checkpoints.llama PATH``.

Its texts mean nothing. Sampled at temperature 1 they end by themselves: there are about a hundred tokens to draw from,
and one of them is the end.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PRINTABLE = tuple(chr(code) for code in range(0x21, 0x7F))
MERGED = "ab"  # a tokenizer without any merge is refused
TOKENS = (*SPECIAL, *PRINTABLE, "Ġ", "Ċ", MERGED)
END = 2


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """Sizes of the random model; ``seed`` draws its weights."""

    layers: int = 8
    hidden: int = 512
    inner: int = 1536
    heads: int = 8
    kv_heads: int = 4
    context: int = 2048
    seed: int = 70


def write_random_llama(path: Path, sizes: LlamaSizes = LlamaSizes()) -> Path:
    """Write the file and give its path. Q4_1 products, a Q8_0 tied embedding, F32 norms of one."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - len(SPECIAL))])
    writer.add_token_merges([" ".join(MERGED)])
    writer.add_eos_token_id(END)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>")
    rng = np.random.default_rng(sizes.seed)
    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    for name, (outputs, inputs) in _products(sizes).items():
        values = rng.normal(size=(outputs, inputs)).astype(np.float32) * inputs**-0.5
        kind = q8 if name == "token_embd.weight" else q4
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in _norms(sizes):
        writer.add_tensor(name, np.ones(sizes.hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _products(sizes: LlamaSizes) -> dict[str, tuple[int, int]]:
    keys = sizes.kv_heads * sizes.hidden // sizes.heads
    found = {"token_embd.weight": (len(TOKENS), sizes.hidden)}
    for layer in range(sizes.layers):
        block = f"blk.{layer}."
        found |= {
            f"{block}attn_q.weight": (sizes.hidden, sizes.hidden),
            f"{block}attn_k.weight": (keys, sizes.hidden),
            f"{block}attn_v.weight": (keys, sizes.hidden),
            f"{block}attn_output.weight": (sizes.hidden, sizes.hidden),
            f"{block}ffn_gate.weight": (sizes.inner, sizes.hidden),
            f"{block}ffn_up.weight": (sizes.inner, sizes.hidden),
            f"{block}ffn_down.weight": (sizes.hidden, sizes.inner),
        }
    return found


def _norms(sizes: LlamaSizes) -> list[str]:
    of_layers = [f"blk.{layer}.{kind}_norm.weight" for layer in range(sizes.layers) for kind in ("attn", "ffn")]
    return ["output_norm.weight", *of_layers]


def main(argv: list[str] | None = None) -> None:
    """Command line: where the file goes, and sizes other than the usual ones."""
    usual = LlamaSizes()
    parser = argparse.ArgumentParser(prog="python -m suites.checkpoints.llama", description=__doc__)
    parser.add_argument("path", type=Path)
    for name in ("layers", "hidden", "inner", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name), help="default: %(default)s")
    options = vars(parser.parse_args(argv))
    write_random_llama(options.pop("path"), replace(usual, **options))


if __name__ == "__main__":
    main()
