"""Sizes of a hybrid decoder (Gated DeltaNet layers and full attention) out of a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

# The architecture string decides; everything else about a checkpoint is checked against it.
ARCHITECTURES = ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM")


class LayerKind(StrEnum):
    """What mixes tokens in a layer; the values are the checkpoint's own words."""

    GDN = "linear_attention"
    ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Full attention: grouped queries with an output gate, norms on q and k, RoPE on the first ``rotary_dim``."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    gated: bool


@dataclass(frozen=True, slots=True)
class GdnSizes:
    """Gated DeltaNet: value head j reads key head ``j // (value_heads / key_heads)``."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all query heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Everything that the forward must know; complete when built."""

    vocab_size: int
    context_length: int
    hidden_size: int
    intermediate_size: int
    rms_eps: float
    tied: bool
    layers: tuple[LayerKind, ...]
    attention: AttentionSizes
    gdn: GdnSizes

    @property
    def num_layers(self) -> int:
        """Layers of both kinds."""
        return len(self.layers)


def read_hybrid_config(folder: Path) -> HybridConfig:
    """Read ``folder/config.json``. Raises ``ModelFileError`` for what is missing, strange or of another kind."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{folder}: no config.json; give a Hugging Face model folder or a .gguf file") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path}: holds {type(raw).__name__}; a config is a JSON object")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in ARCHITECTURES:
        raise ModelFileError(f"{path}: architectures {architectures!r}; allowed: one of {', '.join(ARCHITECTURES)}")
    text = raw.get("text_config", raw)
    # Newer configs keep what concerns RoPE in a record of its own.
    return _parse(_Fields(path, {**text, **(text.get("rope_parameters") or {})}))


def _parse(read: _Fields) -> HybridConfig:
    if read.values.get("num_experts"):
        raise ModelFileError(f"{read.path}: num_experts {read.values['num_experts']}; allowed: a dense MLP")
    if read.values.get("rope_scaling") is not None or read.values.get("rope_type", "default") != "default":
        seen = read.values.get("rope_scaling") or read.values.get("rope_type")
        raise ModelFileError(f"{read.path}: RoPE scaling {seen!r}; allowed: none")
    if read.values.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{read.path}: hidden_act {read.values['hidden_act']!r}; allowed: 'silu'")
    num_heads = read.size("num_attention_heads")
    num_kv_heads = read.size("num_key_value_heads")
    read.multiple("num_attention_heads", num_heads, "num_key_value_heads", num_kv_heads)
    head_dim = read.size("head_dim")
    rotary = head_dim * read.real("partial_rotary_factor", 1.0)
    if rotary != int(rotary) or int(rotary) % 2 or not 2 <= rotary <= head_dim:
        raise ModelFileError(f"{read.path}: {rotary} of {head_dim} dimensions turn; allowed: an even number of them")
    gdn = GdnSizes(
        key_heads=read.size("linear_num_key_heads"),
        value_heads=read.size("linear_num_value_heads"),
        key_dim=read.size("linear_key_head_dim"),
        value_dim=read.size("linear_value_head_dim"),
        conv_width=read.size("linear_conv_kernel_dim"),
    )
    read.multiple("linear_num_value_heads", gdn.value_heads, "linear_num_key_heads", gdn.key_heads)
    return HybridConfig(
        vocab_size=read.size("vocab_size"),
        context_length=read.size("max_position_embeddings"),
        hidden_size=read.size("hidden_size"),
        intermediate_size=read.size("intermediate_size"),
        rms_eps=read.real("rms_norm_eps"),
        tied=bool(read.values.get("tie_word_embeddings", False)),
        layers=_layers(read),
        attention=AttentionSizes(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rotary_dim=int(rotary),
            rope_theta=read.real("rope_theta", 10000.0),
            gated=bool(read.values.get("attn_output_gate", True)),
        ),
        gdn=gdn,
    )


def _layers(read: _Fields) -> tuple[LayerKind, ...]:
    """``layer_types`` where it is given, otherwise every ``full_attention_interval``-th layer is attention."""
    count = read.size("num_hidden_layers")
    named = read.values.get("layer_types")
    if named is None:
        interval = read.size("full_attention_interval", 4)
        return tuple(LayerKind.GDN if (index + 1) % interval else LayerKind.ATTENTION for index in range(count))
    kinds = [kind.value for kind in LayerKind]
    if not isinstance(named, list) or len(named) != count or any(name not in kinds for name in named):
        raise ModelFileError(f"{read.path}: layer_types {named!r}; allowed: {count} of {', '.join(kinds)}")
    return tuple(LayerKind(name) for name in named)


@dataclass(frozen=True, slots=True)
class _Fields:
    path: Path
    values: Mapping[str, Any]

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if type(value) is not int or value < 1:
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a whole number above 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a number above 0")
        return float(value)

    def multiple(self, key: str, value: int, other_key: str, other: int) -> None:
        if value % other:
            raise ModelFileError(f"{self.path}: {key} {value} over {other_key} {other}; allowed: a multiple")
