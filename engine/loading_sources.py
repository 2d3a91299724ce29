"""The two kinds of model file, each as what loading asks of it: sizes, tokenizer, the decoder over its caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from engine.config import EngineConfig
from engine.model.attention import Attention
from engine.model.checkpoint import Checkpoint
from engine.model.decoder import Decoder
from engine.model.device import ModelDevice
from engine.model.dflash2_config import TargetSizes
from engine.model.gguf_file import read_gguf
from engine.model.hybrid import Hybrid
from engine.model.hybrid_config import GdnSizes, LayerKind, read_hybrid_config
from engine.model.hybrid_shards import hybrid_format, hybrid_shard
from engine.model.hybrid_weights import load_hybrid
from engine.model.hybrid_weights import load_whole_tables as hybrid_tables
from engine.model.llama import Llama
from engine.model.llama_shards import llama_shard
from engine.model.saved_shards import saved_file
from engine.model.tokenizer import ChatTokenizer
from engine.model.tokenizer_gguf import tokenizer_from_gguf
from engine.model.tokenizer_hf import tokenizer_from_folder
from engine.model.weights_gguf import llama_config, load_llama, weight_format
from engine.model.weights_gguf import load_whole_tables as llama_tables
from engine.ops.functional import Weight
from engine.parallel.group import Group
from engine.parallel.layers import TensorParallel
from engine.parallel.plan import VocabSplit
from engine.state.paged_kv import PagedKVCache
from engine.state.recurrent import RecurrentStates

Tables = tuple[Weight, Weight]
"""Embedding and head; one weight where a model ties them."""


class Rows(TypedDict):
    """How many positions a decoder knows, and how many rows a forward has at most."""

    max_positions: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Shape:
    """One rank's share of a model, as its caches see it. ``gdn`` is None where no layer has a recurrent state."""

    layers: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    gdn: GdnSizes | None = None


class Source(Protocol):
    """The files of a model, opened for one rank. Weights are read when the decoder is made, what fails early before."""

    @property
    def target(self) -> TargetSizes:
        """Sizes of the whole model."""

    @property
    def context_length(self) -> int:
        """Positions that the model was made for."""

    @property
    def shape(self) -> Shape:
        """What this rank's caches hold."""

    @property
    def vocab(self) -> VocabSplit:
        """Which rows of embedding and head each rank holds."""

    def tokenizer(self) -> ChatTokenizer:
        """Raises ``ModelFileError`` for one that is missing, foreign or contradicts itself."""

    def decoder(
        self,
        cache: PagedKVCache,
        states: RecurrentStates | None,
        attention: Attention,
        device: ModelDevice,
        parallel: TensorParallel,
        rows: Rows,
    ) -> tuple[Decoder, Tables]:
        """Read this rank's weights, bring them to ``device``; the decoder, and the tables that it has of the two.

        Raises ``ModelFileError`` for a tensor that is missing, misshapen or unknown.
        """

    def whole_tables(self) -> Tables:
        """Embedding and head of the whole vocabulary, on the CPU."""


def open_source(path: Path, config: EngineConfig, group: Group) -> Source:
    """A folder holds a hybrid model, a file a Llama model. Raises ``ModelFileError`` for what is neither."""
    return _Folder(path, group) if path.is_dir() else _Gguf(path, config, group)


class _Gguf:
    """See `Source`."""

    def __init__(self, path: Path, config: EngineConfig, group: Group) -> None:
        self._path = path
        self._file = read_gguf(path)
        whole = llama_config(self._file)
        self._shard = llama_shard(
            whole, group.size, group.rank, weight_format=weight_format(self._file), pad_heads=config.pad_heads
        )
        self.target = TargetSizes(whole.vocab_size, whole.hidden_size, whole.num_layers)
        self.context_length = whole.context_length
        self.vocab = self._shard.vocab
        local = self._shard.local
        layers = (LayerKind.ATTENTION,) * local.num_layers
        self.shape = Shape(layers, local.num_heads, local.num_kv_heads, local.head_dim)

    def tokenizer(self) -> ChatTokenizer:
        return tokenizer_from_gguf(self._file.metadata, str(self._path))

    def decoder(
        self,
        cache: PagedKVCache,
        states: RecurrentStates | None,
        attention: Attention,
        device: ModelDevice,
        parallel: TensorParallel,
        rows: Rows,
    ) -> tuple[Decoder, Tables]:
        assert states is None  # `shape` has no GDN layers
        weights = load_llama(self._file, self._shard).on(device)
        model = Llama(weights, cache, attention, device=device, parallel=parallel, **rows)
        return model, (weights.embedding, weights.head)

    def whole_tables(self) -> Tables:
        return llama_tables(self._file)


class _Folder:
    """See `Source`."""

    def __init__(self, folder: Path, group: Group) -> None:
        self._folder = folder
        self._whole = read_hybrid_config(folder)
        self._own = saved_file(folder, group.rank, group.size)
        with Checkpoint(folder, only=self._own) as stored:
            self._shard = hybrid_shard(self._whole, group.size, group.rank, hybrid_format(stored.names))
        self.target = TargetSizes(self._whole.vocab_size, self._whole.hidden_size, self._whole.num_layers)
        self.context_length = self._whole.context_length
        self.vocab = self._shard.vocab
        local = self._shard.local
        heads = local.attention
        self.shape = Shape(local.layers, heads.num_heads, heads.num_kv_heads, heads.head_dim, local.gdn)

    def tokenizer(self) -> ChatTokenizer:
        return tokenizer_from_folder(self._folder, self._whole.vocab_size)

    def decoder(
        self,
        cache: PagedKVCache,
        states: RecurrentStates | None,
        attention: Attention,
        device: ModelDevice,
        parallel: TensorParallel,
        rows: Rows,
    ) -> tuple[Decoder, Tables]:
        assert states is not None  # `shape` has GDN layers
        cut = self._shard if self._shard.tp > 1 and self._own is None else None
        with Checkpoint(self._folder, ignored_prefixes=("mtp.",), shard=cut, only=self._own) as checkpoint:
            weights = load_hybrid(checkpoint, self._shard).on(device)
        model = Hybrid(weights, cache, states, attention, device=device, parallel=parallel, **rows)
        return model, (weights.embedding, weights.head)

    def whole_tables(self) -> Tables:
        return hybrid_tables(self._folder, self._whole, self._shard.tp)
