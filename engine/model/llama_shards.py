"""How the tensors of a Llama model are cut for one rank. Pure: integers in, pieces out. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.linear.admission import Projection, Split, require_admitted
from engine.model.llama_config import LlamaConfig
from engine.parallel.plan import HeadSplit, VocabSplit, split_heads
from engine.parallel.shards import Piece, Rows, shard_contiguous


@dataclass(frozen=True, slots=True)
class LlamaShard:
    """One rank's share of a Llama model. ``config`` is the whole model's; ``local`` says what the rank stores."""

    config: LlamaConfig
    heads: HeadSplit
    rank: int

    @property
    def tp(self) -> int:
        """How many ranks share the model."""
        return self.heads.tp

    @property
    def vocab(self) -> VocabSplit:
        """Which rows of embedding and head each rank holds."""
        return VocabSplit(self.config.vocab_size, self.tp)

    @property
    def local(self) -> LlamaConfig:
        """The sizes of this rank's weights; its vocabulary counts the rows that it stores."""
        return replace(
            self.config,
            vocab_size=self.vocab.local,
            intermediate_size=self.config.intermediate_size // self.tp,
            num_heads=self.heads.local_heads,
            num_kv_heads=self.heads.local_kv_heads,
        )

    @property
    def queries(self) -> Piece:
        """Rows of the query projection, and columns of the output projection."""
        return self._heads(self.heads.query_rows(self.rank), self.heads.local_heads)

    @property
    def keys(self) -> Piece:
        """Rows of the key projection, and of the value projection."""
        return self._heads(self.heads.kv_rows(self.rank), self.heads.local_kv_heads)

    @property
    def inner(self) -> Piece:
        """Rows of gate and of up, and columns of down."""
        return Piece(0, (shard_contiguous(self.config.intermediate_size, self.tp, self.rank),))

    @property
    def vocabulary(self) -> Piece:
        """Rows of embedding and head."""
        rows = self.vocab.rows(self.rank)
        return Piece(0, (rows,), self.vocab.local - rows.count)

    def _heads(self, rows: Rows, stored: int) -> Piece:
        dim = self.config.head_dim
        return Piece(0, (Rows(rows.start * dim, rows.stop * dim),), (stored - rows.count) * dim)


def llama_shard(config: LlamaConfig, tp: int, rank: int, *, weight_format: str, pad_heads: bool) -> LlamaShard:
    """The share of ``rank``. Raises ``InputError`` for heads or a projection that ``tp`` ranks cannot have."""
    heads = split_heads(config.num_heads, config.num_kv_heads, tp, pad=pad_heads)
    if tp > 1:
        require_admitted(llama_projections(config, heads, weight_format), tp)
    return LlamaShard(config, heads, rank)


def llama_projections(config: LlamaConfig, heads: HeadSplit, weight_format: str) -> tuple[Projection, ...]:
    """Every kind of product in the model, with the zero heads of ``heads``, for `engine.linear.admission`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = heads.padded_heads * config.head_dim, heads.padded_kv_heads * config.head_dim
    column, row = Split.COLUMN, Split.ROW
    return (
        Projection(
            "attention qkv",
            queries + 2 * keys,
            hidden,
            weight_format,
            column,
            sections=(queries, keys, keys),
            units=(heads.padded_heads, heads.padded_kv_heads, heads.padded_kv_heads),
        ),
        Projection("attention out", hidden, queries, weight_format, row),
        Projection("mlp gate up", 2 * inner, hidden, weight_format, column, sections=(inner, inner)),
        Projection("mlp down", hidden, inner, weight_format, row),
    )
