"""From a config to a draft model that can run beside its target."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import InputError
from engine.model.checkpoint import Checkpoint
from engine.model.dflash2 import DFlash2
from engine.model.dflash2_config import DFlash2Config, TargetSizes, read_dflash2_config
from engine.model.dflash2_weights import load_dflash2
from engine.model.draft_runner import DraftRunner
from engine.model.runner import ModelRunner
from engine.ops.functional import Weight
from engine.state.paged_kv import PagedKVCache


def draft_config(config: EngineConfig, target: TargetSizes, max_model_len: int) -> DFlash2Config | None:
    """What the draft folder says, or None without one.

    Raises ``InputError`` for a folder that is no DFlash2 model, for one that was made for another target, and for K or
    a context that it was not trained for.
    """
    if config.draft_model is None:
        return None
    sizes = read_dflash2_config(config.draft_model)
    sizes.check_target(target)
    if not config.draft_looks_up and config.draft_tokens > sizes.max_drafts:
        raise InputError(
            f"draft-tokens is {config.draft_tokens}; {config.draft_model} was trained for blocks of "
            f"{sizes.max_drafts}: allowed 1 to {sizes.max_drafts}, or more with draft dflash2+lookup"
        )
    if sizes.context_length < max_model_len:
        raise InputError(
            f"the draft model sees {sizes.context_length} positions, max-model-len is {max_model_len}; "
            f"allowed: --max-model-len up to {sizes.context_length}"
        )
    return sizes


def load_draft(
    config: EngineConfig,
    sizes: DFlash2Config,
    runner: ModelRunner,
    *,
    embedding: Weight,
    head: Weight,
    num_blocks: int,
    max_positions: int,
) -> DraftRunner:
    """The draft model with caches and buffers of its own. Its blocks have the ids of the target's."""
    assert config.draft_model is not None  # `sizes` was read from there
    with Checkpoint(config.draft_model) as checkpoint:
        weights = load_dflash2(checkpoint, sizes)
    device = runner.device
    # Whatever the target's cache is: a draft that was made from coarse keys is a worse guess.
    cache_format = "float16" if device.runs_kernels else "float32"
    shape = (sizes.num_layers, num_blocks, config.block_size, sizes.num_kv_heads, sizes.head_dim)
    cache = PagedKVCache(*shape, cache_format, device.device)
    model = DFlash2(
        weights,
        cache,
        embedding=embedding,
        head=head,
        max_positions=max_positions,
        max_blocks=config.max_sequences,
        device=device,
    )
    return DraftRunner(
        model,
        runner.taps.rows,
        max_sequences=config.max_sequences,
        max_blocks=-(-max_positions // config.block_size),
        graphs=config.cuda_graphs,
        context_graphs=config.context_kv_graph,
    )
