"""How each tensor of a hybrid checkpoint is cut for one rank, by the name of its module. Pure: no torch.

The loader is told a rank's own sizes and takes tensors of those; between it and the file stands `HybridShard`, which
knows which rows or columns of the stored tensor these are. What belongs to one matrix (codes and block scales of a
quantised one) is cut alike; numbers without a dimension belong to every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.errors import ModelFileError
from engine.linear.admission import Projection, Split, require_admitted
from engine.model.hybrid_config import HybridConfig
from engine.parallel.plan import VocabSplit, split_heads
from engine.parallel.shards import Piece, shard_contiguous, shard_sections


class Cut(StrEnum):
    """What a rank takes of a module's tensors."""

    WHOLE = "whole"
    ROWS = "rows"  # a contiguous share: one section, or sections interleaved by head group
    QKV_ROWS = "qkv rows"  # a share of each of the sections q, k and v
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"  # rows, the last rank's filled up with zeros


CUTS: dict[str, Cut] = {
    "embed_tokens": Cut.VOCABULARY,
    "lm_head": Cut.VOCABULARY,
    "norm": Cut.WHOLE,
    "input_layernorm": Cut.WHOLE,
    "post_attention_layernorm": Cut.WHOLE,
    "q_norm": Cut.WHOLE,
    "k_norm": Cut.WHOLE,
    "in_proj_qkv": Cut.QKV_ROWS,
    "conv1d": Cut.QKV_ROWS,
    "in_proj_z": Cut.ROWS,
    "in_proj_b": Cut.ROWS,
    "in_proj_a": Cut.ROWS,
    "A_log": Cut.ROWS,
    "dt_bias": Cut.ROWS,
    "in_proj_qkvz": Cut.ROWS,
    "in_proj_ba": Cut.ROWS,
    "out_proj": Cut.COLUMNS,
    "q_proj": Cut.ROWS,
    "k_proj": Cut.ROWS,
    "v_proj": Cut.ROWS,
    "o_proj": Cut.COLUMNS,
    "gate_proj": Cut.ROWS,
    "up_proj": Cut.ROWS,
    "down_proj": Cut.COLUMNS,
}
"""The table: module name to cut. A module that is not in it cannot be loaded over several ranks."""

_FIELDS = ("weight", "weight_scale", "weight_scale_2")


@dataclass(frozen=True, slots=True)
class HybridShard:
    """One rank's share of a hybrid model. ``config`` is the whole model's; ``local`` what the rank's loader is told."""

    config: HybridConfig
    tp: int
    rank: int

    @property
    def vocab(self) -> VocabSplit:
        """Which rows of embedding and head each rank holds."""
        return VocabSplit(self.config.vocab_size, self.tp)

    @property
    def local(self) -> HybridConfig:
        """The sizes of this rank's weights; its vocabulary counts the rows that it stores."""
        whole, tp = self.config, self.tp
        return replace(
            whole,
            vocab_size=self.vocab.local,
            intermediate_size=whole.intermediate_size // tp,
            attention=replace(
                whole.attention,
                num_heads=whole.attention.num_heads // tp,
                num_kv_heads=whole.attention.num_kv_heads // tp,
            ),
            gdn=replace(whole.gdn, key_heads=whole.gdn.key_heads // tp, value_heads=whole.gdn.value_heads // tp),
        )

    def piece(self, name: str, shape: tuple[int, ...]) -> Piece | None:
        """What this rank takes of the stored tensor ``name`` of ``shape``; None for all of it.

        Raises ``ModelFileError`` for a module that the table does not know and for rows that cannot be divided.
        """
        if not shape:
            return None
        *path, field = name.split(".")
        module = path[-1] if field in _FIELDS else field
        cut = CUTS.get(module)
        if cut is None:
            raise ModelFileError(f"tensor {name}: no rule divides it over ranks; allowed: {', '.join(CUTS)}")
        if cut is Cut.WHOLE or (cut is Cut.COLUMNS and shape[1] == 1):  # one number per row belongs to all its columns
            return None
        try:
            return self._piece(cut, shape)
        except ValueError as error:
            raise ModelFileError(f"tensor {name} of shape {shape} at TP {self.tp}: {error}") from error

    def _piece(self, cut: Cut, shape: tuple[int, ...]) -> Piece:
        if cut is Cut.VOCABULARY:
            rows = self.vocab.rows(self.rank)
            return Piece(0, (rows,), self.vocab.local - rows.count)
        if cut is Cut.QKV_ROWS:
            keys, values = self.config.gdn.keys, self.config.gdn.values
            return Piece(0, shard_sections((keys, keys, values), self.tp, self.rank))
        axis = 1 if cut is Cut.COLUMNS else 0
        return Piece(axis, (shard_contiguous(shape[axis], self.tp, self.rank),))


def hybrid_format(names: Iterable[str]) -> str:
    """The format of a checkpoint's projections by the ``names`` of its tensors, as `engine.linear.formats` calls it."""
    return "nvfp4" if any(name.endswith(".weight_scale_2") for name in names) else "fp32"


def hybrid_shard(config: HybridConfig, tp: int, rank: int, weight_format: str) -> HybridShard:
    """The share of ``rank``. Raises ``InputError`` for the first projection that ``tp`` ranks cannot have."""
    if tp > 1:
        # Recurrent heads cannot be filled up with zeros, so the others are not either.
        split_heads(config.attention.num_heads, config.attention.num_kv_heads, tp, pad=False, may_pad=False)
        require_admitted(hybrid_projections(config, weight_format), tp)
    return HybridShard(config, tp, rank)


def hybrid_projections(config: HybridConfig, weight_format: str) -> tuple[Projection, ...]:
    """Every kind of product in the model, for `engine.linear.admission`."""
    attention, gdn, hidden, inner = config.attention, config.gdn, config.hidden_size, config.intermediate_size
    queries, keys = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    sections = (gdn.keys, gdn.keys, gdn.values, gdn.values, gdn.value_heads, gdn.value_heads)
    gdn_heads = (gdn.key_heads,) * 2 + (gdn.value_heads,) * 4
    heads = (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)

    def columns(name: str, sections: tuple[int, ...], units: tuple[int, ...] = ()) -> Projection:
        return Projection(name, sum(sections), hidden, weight_format, Split.COLUMN, sections=sections, units=units)

    def rows(name: str, inputs: int) -> Projection:
        return Projection(name, hidden, inputs, weight_format, Split.ROW)

    gate = [columns("attention gate", (queries,), (attention.num_heads,))] if attention.gated else []
    return (
        columns("gdn in", sections, gdn_heads),
        rows("gdn out", gdn.values),
        columns("attention qkv", (queries, keys, keys), heads),
        *gate,
        rows("attention out", queries),
        columns("mlp gate up", (inner, inner)),
        rows("mlp down", inner),
    )
