"""From a config to a model that can run: files, weights, caches and limits, each made once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import InputError
from engine.loading_draft import draft_config, load_draft
from engine.loading_sources import Rows, Source, Tables, open_source
from engine.model.attention import Attention, DirectAttention, RoutedAttention
from engine.model.decoder import Decoder
from engine.model.device import ModelDevice, open_device
from engine.model.dflash2_config import DFlash2Config
from engine.model.draft_runner import DraftRunner
from engine.model.followers import Leader
from engine.model.hybrid_config import GdnSizes, LayerKind
from engine.model.runner import ModelRunner
from engine.model.tokenizer import ChatTokenizer
from engine.model.weights_gguf import default_model_path
from engine.ops.bound import set_threads
from engine.parallel.group import Alone, Group
from engine.parallel.layers import TensorParallel
from engine.state.blocks import BlockPool
from engine.state.paged_kv import PagedKVCache
from engine.state.pools import CachePools
from engine.state.prefix import PrefixIndex
from engine.state.recurrent import RecurrentStates

# Recurrent states kept at the end of full blocks of known prefixes, for later requests.
_KEPT_STATES = 32


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to run, with the pools that its caches are cut into and the longest sequence it takes.

    Attention layers have rows in ``cache``, GDN layers in ``states``; both count their own kind only. A sequence takes
    up to ``round_rows`` rows of its pools in a round. ``draft`` is the draft model, where one is asked for.
    """

    tokenizer: ChatTokenizer
    runner: ModelRunner
    pools: CachePools
    cache: PagedKVCache
    max_model_len: int
    layers: tuple[LayerKind, ...]
    round_rows: int
    states: RecurrentStates | None = None
    draft: DraftRunner | None = None

    @property
    def pool(self) -> BlockPool:
        """The KV blocks."""
        return self.pools.blocks


def load_model(config: EngineConfig, group: Group | None = None) -> LoadedModel:
    """Read the checkpoint or a rank's share of it, set the threads, allocate everything.

    Raises ``InputError`` for what cannot be used, and for a group of another size than ``config.tp``.
    """
    group = group or Alone()
    if group.size != config.tp:
        raise InputError(
            f"tp is {config.tp}, the process group has {group.size} ranks; allowed: the same number "
            "(python -m engine --tp N starts N ranks)"
        )
    set_threads(config.num_threads)
    # Torch has little left to do beside the native pool, and two pools on the same cores would fight.
    torch.set_num_threads(1)
    path = config.model or default_model_path()
    device = open_device(config.device if group.size == 1 or config.device == "cpu" else f"cuda:{group.rank}")
    source = open_source(path, config, group)
    shape, limits = source.shape, _limits(config, source)
    tokenizer = source.tokenizer()
    cache = PagedKVCache(
        shape.layers.count(LayerKind.ATTENTION),
        limits.num_blocks,
        config.block_size,
        shape.num_kv_heads,
        shape.head_dim,
        config.cache_format,
        device.device,
    )
    blocks = BlockPool(limits.num_blocks, config.block_size)
    if shape.gdn is None:
        states, pools = None, CachePools(blocks, prefixes=PrefixIndex(blocks) if config.prefix_reuse else None)
    else:
        kept = _KEPT_STATES if config.prefix_reuse else 0
        # A sequence holds the state it stands at and, during a round, one after each row; slot 0 belongs to nobody.
        slots = BlockPool(config.max_sequences * (limits.round_rows + 1) + kept + 1, 1)
        states = _states(shape.layers.count(LayerKind.GDN), shape.gdn, slots.num_blocks, device)
        pools = CachePools(blocks, slots, PrefixIndex(blocks, slots, kept) if config.prefix_reuse else None)
    attention = _attention(cache, shape.num_heads, config, limits, device)
    parallel = TensorParallel(group, source.vocab, fp32_logits=config.fp32_logits)
    rows: Rows = {"max_positions": limits.max_positions, "max_rows": limits.max_rows}
    model, tables = source.decoder(cache, states, attention, device, parallel, rows)
    runner = _runner(model, attention, config, limits, device, group)
    return LoadedModel(
        tokenizer,
        runner,
        pools,
        cache,
        limits.max_model_len,
        shape.layers,
        limits.round_rows,
        states,
        _draft(config, limits, runner, group, tables, source),
    )


def _draft(
    config: EngineConfig,
    limits: _Limits,
    runner: ModelRunner,
    group: Group,
    own: Tables,
    source: Source,
) -> DraftRunner | None:
    """The draft model, on the rank that drafts. It reads embedding and head of the whole vocabulary there.

    ``own``: what this rank has of the two.
    """
    if limits.draft is None or group.rank:
        return None
    if group.size == 1:
        embedding, head = own
    else:
        whole_embedding, whole_head = source.whole_tables()
        embedding = runner.device.weight(whole_embedding)
        head = embedding if whole_head is whole_embedding else runner.device.weight(whole_head)
    return load_draft(
        config,
        limits.draft,
        runner,
        embedding=embedding,
        head=head,
        num_blocks=limits.num_blocks,
        max_positions=limits.max_positions,
    )


def _states(layers: int, gdn: GdnSizes, num_slots: int, device: ModelDevice) -> RecurrentStates:
    return RecurrentStates(
        layers,
        num_slots,
        conv_width=gdn.conv_width,
        conv_dim=gdn.conv_dim,
        value_heads=gdn.value_heads,
        value_dim=gdn.value_dim,
        key_dim=gdn.key_dim,
        device=device.device,
        activations=device.activations,
    )


def _attention(
    cache: PagedKVCache, query_heads: int, config: EngineConfig, limits: _Limits, device: ModelDevice
) -> Attention:
    scale = cache.keys(0).shape[-1] ** -0.5
    if not device.runs_kernels:
        return DirectAttention(scale)
    return RoutedAttention(
        cache,
        query_heads=query_heads,
        scale=scale,
        max_sequences=config.max_sequences,
        max_blocks=limits.max_blocks(config.block_size),
        max_model_len=limits.max_positions,
        overrides=config.attention,
    )


@dataclass(frozen=True, slots=True)
class _Limits:
    """What the buffers and pools are sized by."""

    max_model_len: int
    max_positions: int
    max_rows: int
    num_blocks: int
    round_rows: int
    draft: DFlash2Config | None

    def max_blocks(self, block_size: int) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_positions // block_size)


def _limits(config: EngineConfig, source: Source) -> _Limits:
    max_model_len = config.max_model_len or source.context_length
    if max_model_len > source.context_length:
        raise InputError(f"max-model-len is {max_model_len}; the model's context allows up to {source.context_length}")
    draft = draft_config(config, source.target, max_model_len)
    # A drafted block takes the rows of the trained block, even where fewer of its tokens are verified.
    round_rows = max(config.verify_width, 1 if draft is None else draft.block_size)
    max_positions = max_model_len + round_rows
    return _Limits(
        max_model_len=max_model_len,
        max_positions=max_positions,
        max_rows=max(config.prefill_chunk, config.max_sequences * config.verify_width),
        # One full sequence with its drafts unless told otherwise, and block 0, which belongs to nobody.
        num_blocks=-(-(config.kv_cache_tokens or max_positions) // config.block_size) + 1,
        round_rows=round_rows,
        draft=draft,
    )


def _runner(
    model: Decoder,
    attention: Attention,
    config: EngineConfig,
    limits: _Limits,
    device: ModelDevice,
    group: Group,
) -> ModelRunner:
    return ModelRunner(
        model,
        attention,
        max_rows=limits.max_rows,
        max_logit_rows=config.max_sequences * config.verify_width,
        max_sequences=config.max_sequences,
        max_blocks=limits.max_blocks(config.block_size),
        tap_layers=() if limits.draft is None or group.rank else limits.draft.target_layer_ids,
        device=device,
        graphs=config.cuda_graphs,
        announce=Leader(group).announce if group.size > 1 and group.rank == 0 else None,
    )
