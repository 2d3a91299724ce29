"""Sizes of a hybrid decoder (Gated DeltaNet layers and full attention) out of a Hugging Face ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine.errors import ModelFileError
from engine.model.config_json import ConfigFields, read_config_json

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
    """Read ``folder/config.json``. Raises ``ModelFileError`` for a field that is missing, unknown or mistyped."""
    hint = "; a DFlash2DraftModel drafts for one of them and is given as the draft model"
    return _parse(read_config_json(folder, ARCHITECTURES, hint))


def _parse(read: ConfigFields) -> HybridConfig:
    if read.values.get("num_experts"):
        raise ModelFileError(f"{read.path}: num_experts {read.values['num_experts']}; allowed: a dense MLP")
    num_heads = read.size("num_attention_heads")
    num_kv_heads = read.size("num_key_value_heads")
    read.multiple("num_attention_heads", num_heads, "num_key_value_heads", num_kv_heads)
    head_dim = read.size("head_dim")
    rotary = head_dim * read.real("partial_rotary_factor", 1.0)
    if not 2 <= rotary <= head_dim or rotary % 2:
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
        tied=read.flag("tie_word_embeddings", False),
        layers=_layers(read),
        attention=AttentionSizes(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rotary_dim=int(rotary),
            rope_theta=read.real("rope_theta", 10000.0),
            gated=read.flag("attn_output_gate", True),
        ),
        gdn=gdn,
    )


def _layers(read: ConfigFields) -> tuple[LayerKind, ...]:
    """``layer_types`` where it is given, otherwise every ``full_attention_interval``-th layer is attention."""
    count = read.layers()
    named = read.values.get("layer_types")
    if named is None:
        interval = read.size("full_attention_interval", 4)
        if interval > count:
            raise ModelFileError(
                f"{read.path}: full_attention_interval {interval} over {count} layers; allowed: 1 to {count}, so that "
                "one of them is attention"
            )
        return tuple(LayerKind.GDN if (index + 1) % interval else LayerKind.ATTENTION for index in range(count))
    kinds = [kind.value for kind in LayerKind]
    if not isinstance(named, list) or len(named) != count or any(name not in kinds for name in named):
        raise ModelFileError(f"{read.path}: layer_types {named!r}; allowed: {count} of {', '.join(kinds)}")
    if LayerKind.ATTENTION.value not in named:
        raise ModelFileError(f"{read.path}: layer_types has no {LayerKind.ATTENTION.value}; allowed: at least one")
    return tuple(LayerKind(name) for name in named)
