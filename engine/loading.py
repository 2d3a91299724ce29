"""From a config to a model that can run: files, weights, caches and limits, each made once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import InputError
from engine.model.gguf_file import read_gguf
from engine.model.llama import Llama
from engine.model.runner import ModelRunner
from engine.model.tokenizer import ChatTokenizer
from engine.model.weights_gguf import default_model_path, llama_config, load_llama
from engine.ops.bound import set_threads
from engine.state.blocks import BlockPool
from engine.state.paged_kv import PagedKVCache


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run, with the pool that its KV cache is cut into and the longest sequence it takes."""

    tokenizer: ChatTokenizer
    runner: ModelRunner
    pool: BlockPool
    max_model_len: int


def load_model(config: EngineConfig) -> LoadedModel:
    """Read the checkpoint, set the threads, allocate everything. Raises ``InputError`` for what cannot be used."""
    file = read_gguf(config.model or default_model_path())
    model = llama_config(file)
    tokenizer = ChatTokenizer(file.metadata, str(file.path))
    max_model_len = config.max_model_len or model.context_length
    if max_model_len > model.context_length:
        raise InputError(f"max-model-len is {max_model_len}; the model's context allows up to {model.context_length}")
    set_threads(config.num_threads)
    # Torch has little left to do beside the native pool, and two pools on the same cores would fight.
    torch.set_num_threads(1)
    # One full sequence with its drafts, and block 0, which belongs to nobody.
    tokens = config.kv_cache_tokens or max_model_len + config.verify_width
    num_blocks = -(-tokens // config.block_size) + 1
    cache = PagedKVCache(
        model.num_layers, num_blocks, config.block_size, model.num_kv_heads, model.head_dim, config.kv_cache_dtype
    )
    max_rows = max(config.prefill_chunk, config.max_sequences * config.verify_width)
    max_positions = max_model_len + config.verify_width
    runner = ModelRunner(
        Llama(load_llama(file), cache, max_positions=max_positions, max_rows=max_rows),
        max_rows=max_rows,
        max_logit_rows=config.max_sequences * config.verify_width,
        max_sequences=config.max_sequences,
        max_blocks=-(-max_positions // config.block_size),
    )
    return LoadedModel(tokenizer, runner, BlockPool(num_blocks, config.block_size), max_model_len)
