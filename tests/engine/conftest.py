"""What the engine's tests share: the real model's file (skipped where it is not installed) and a tiny GGUF."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import ModelFileError
from engine.llm import LLM
from engine.model.gguf_file import GgufFile, read_gguf
from engine.model.tokenizer import ChatTokenizer
from engine.model.tokenizer_gguf import tokenizer_from_gguf
from engine.model.weights_gguf import default_model_path


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2; without it, what needs the real model is skipped with the reason."""
    try:
        return default_model_path()
    except ModelFileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def model_file(model_path: Path) -> GgufFile:
    return read_gguf(model_path)


@pytest.fixture(scope="session")
def tokenizer(model_file: GgufFile) -> ChatTokenizer:
    return tokenizer_from_gguf(model_file.metadata, "the test's model")


@pytest.fixture(scope="session")
def llm(model_path: Path) -> LLM:
    """The real model, plain decode."""
    return LLM()


TINY_HIDDEN, TINY_INNER, TINY_HEADS, TINY_KV_HEADS, TINY_LAYERS = 64, 96, 4, 2, 2
TINY_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(code) for code in range(0x21, 0x7F))]


def write_tiny_model(path: Path, architecture: str = "llama", leave_out: str = "", extra: str = "") -> Path:
    """A random Llama of two layers in the formats of the real one, written by the ``gguf`` package's own writer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(TINY_HIDDEN)
    writer.add_feed_forward_length(TINY_INNER)
    writer.add_block_count(TINY_LAYERS)
    writer.add_head_count(TINY_HEADS)
    writer.add_head_count_kv(TINY_KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TINY_TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TINY_TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TINY_TOKENS) - 3)])
    writer.add_token_merges([])
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(7)
    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    head_dim = TINY_HIDDEN // TINY_HEADS
    products: dict[str, tuple[int, int]] = {"token_embd.weight": (len(TINY_TOKENS), TINY_HIDDEN)}
    norms = ["output_norm.weight"]
    for layer in range(TINY_LAYERS):
        block = f"blk.{layer}."
        norms += [f"{block}attn_norm.weight", f"{block}ffn_norm.weight"]
        products |= {
            f"{block}attn_q.weight": (TINY_HIDDEN, TINY_HIDDEN),
            f"{block}attn_k.weight": (TINY_KV_HEADS * head_dim, TINY_HIDDEN),
            f"{block}attn_v.weight": (TINY_KV_HEADS * head_dim, TINY_HIDDEN),
            f"{block}attn_output.weight": (TINY_HIDDEN, TINY_HIDDEN),
            f"{block}ffn_gate.weight": (TINY_INNER, TINY_HIDDEN),
            f"{block}ffn_up.weight": (TINY_INNER, TINY_HIDDEN),
            f"{block}ffn_down.weight": (TINY_HIDDEN, TINY_INNER),
        }
    if extra:
        norms.append(extra)
    for name, (outputs, inputs) in products.items():
        if name != leave_out:
            kind = q8 if name == "token_embd.weight" else q4
            values = rng.normal(size=(outputs, inputs)).astype(np.float32) * inputs**-0.5
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in norms:
        if name != leave_out:
            writer.add_tensor(name, np.ones(TINY_HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
