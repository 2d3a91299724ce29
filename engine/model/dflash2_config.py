"""Sizes of a DFlash2 draft model out of its ``config.json``.

A draft model is a folder of ``config.json`` and ``model.safetensors`` (see `engine.model.dflash2_weights`). It has no
vocabulary of its own: it reads the target's embedding and writes through the target's head, so that its vocabulary and
hidden size are the target's. Keys of the config:

====================================  =================================================================================
``architectures``                     exactly ``["DFlash2DraftModel"]``; nothing else says what the folder is
``vocab_size``, ``hidden_size``       the target's
``intermediate_size``,                of the draft's own layers; every layer is attention and a SwiGLU MLP
``num_hidden_layers``
``num_attention_heads``,              grouped queries; ``head_dim`` is even
``num_key_value_heads``, ``head_dim``
``rms_norm_eps``
``max_position_embeddings``           positions that the draft may see; not below the engine's max-model-len
``rope_theta``                        here or in ``rope_parameters``; the target's is not looked at. Default 10000
``rope_is_neox_style``                true (default): pairs are (i, i + D/2); false: (2i, 2i + 1). All of D turns
``layer_types``                       ``sliding_attention`` or ``full_attention`` for each layer; default: all of them
                                      sliding where ``sliding_window`` is given, otherwise full
``sliding_window``                    W: a key is seen where \\|query - key\\| < W, on both sides
``is_causal``                         false or left out: the block sees itself in both directions
``hidden_act``                        ``silu`` or left out
``num_target_layers``                 optional; checked against the target
``dflash_config``                     an object of what follows; a key that is not named here is refused
====================================  =================================================================================

In ``dflash_config``:

================================  =====================================================================================
``block_size``                    the trained block: an anchor and K = block_size - 1 masks, 2 to 32
``mask_token_id``                 the id in the target's vocabulary that stands for a mask
``target_layer_ids``              the taps, ascending, each once: id means the *output* of that target layer
``conv_kernel_size``              taps of the grouped dynamic convolution, 1 to block_size
``conv_group_size``               channels that share a dynamic coefficient; divides ``hidden_size``
``selector_rank``                 rank of the candidate selector's edges
``selector_top_k``                candidates of each drafted position, 1 to 64 and not above ``vocab_size``
``input_embedding_scale``         optional factor of the embedded block, default 1
``output_multiplier``             optional factor of the candidates' head logits, default 1
``final_logit_softcapping``       optional c: logits become c tanh(logit / c), after the multiplier
================================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError
from engine.model.config_json import ConfigFields, read_config_json

ARCHITECTURE = "DFlash2DraftModel"
MAX_BLOCK = 32
MAX_CANDIDATES = 64

_SLIDING, _FULL = "sliding_attention", "full_attention"
_REQUIRED = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "conv_kernel_size",
    "conv_group_size",
    "selector_rank",
    "selector_top_k",
)
_OPTIONAL = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """What a draft model must know of the model it drafts for."""

    vocab_size: int
    hidden_size: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class DFlash2Config:
    """Everything that the draft forward must know; complete when built. ``windows`` holds None for a full layer."""

    path: Path
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    context_length: int
    rms_eps: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rope_interleaved: bool
    windows: tuple[int | None, ...]
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    conv_kernel: int
    conv_group: int
    selector_rank: int
    selector_top_k: int
    embedding_scale: float
    output_multiplier: float
    softcap: float | None
    num_target_layers: int | None

    @property
    def num_layers(self) -> int:
        """Layers of the draft."""
        return len(self.windows)

    @property
    def max_drafts(self) -> int:
        """K of the trained block: what one block can draft."""
        return self.block_size - 1

    @property
    def conv_groups(self) -> int:
        """Groups of channels that have dynamic coefficients of their own."""
        return self.hidden_size // self.conv_group

    def check_target(self, target: TargetSizes) -> None:
        """Raise ``ModelFileError`` unless the draft was made for a model of these sizes."""
        for name, mine, theirs in (
            ("vocab_size", self.vocab_size, target.vocab_size),
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("num_target_layers", self.num_target_layers, target.num_layers),
        ):
            if mine is not None and mine != theirs:
                raise ModelFileError(
                    f"{self.path}: {name} is {mine}, the target's is {theirs}; they do not belong together"
                )
        missing = [tap for tap in self.target_layer_ids if tap >= target.num_layers]
        if missing:
            raise ModelFileError(
                f"{self.path}: target_layer_ids name layers {missing}; the target has 0 to {target.num_layers - 1}"
            )


def read_dflash2_config(folder: Path) -> DFlash2Config:
    """Read ``folder/config.json``. Raises ``ModelFileError`` for a field that is missing, unknown or mistyped."""
    read = read_config_json(folder, (ARCHITECTURE,), "; this engine drafts with DFlash2 checkpoints alone")
    if read.values.get("is_causal", False) is not False:
        raise ModelFileError(f"{read.path}: is_causal is {read.values['is_causal']!r}; allowed: false")
    special = _special(read)
    hidden, vocab = read.size("hidden_size"), read.size("vocab_size")
    num_heads, num_kv_heads = read.size("num_attention_heads"), read.size("num_key_value_heads")
    read.multiple("num_attention_heads", num_heads, "num_key_value_heads", num_kv_heads)
    head_dim = read.size("head_dim")
    read.multiple("head_dim", head_dim, "a pair of", 2)
    block = _within(special, "block_size", 2, MAX_BLOCK)
    group = special.size("conv_group_size")
    read.multiple("hidden_size", hidden, "conv_group_size", group)
    return DFlash2Config(
        path=read.path,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=read.size("intermediate_size"),
        context_length=read.size("max_position_embeddings"),
        rms_eps=read.real("rms_norm_eps"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope_theta=read.real("rope_theta", 10000.0),
        rope_interleaved=not read.flag("rope_is_neox_style", True),
        windows=_windows(read),
        block_size=block,
        mask_token_id=_within(special, "mask_token_id", 0, vocab - 1),
        target_layer_ids=_taps(special),
        conv_kernel=_within(special, "conv_kernel_size", 1, block),
        conv_group=group,
        selector_rank=special.size("selector_rank"),
        selector_top_k=_within(special, "selector_top_k", 1, min(MAX_CANDIDATES, vocab)),
        embedding_scale=special.real("input_embedding_scale", 1.0),
        output_multiplier=special.real("output_multiplier", 1.0),
        softcap=None
        if special.values.get("final_logit_softcapping") is None
        else special.real("final_logit_softcapping"),
        num_target_layers=None if read.values.get("num_target_layers") is None else read.size("num_target_layers"),
    )


def _special(read: ConfigFields) -> ConfigFields:
    values = read.values.get("dflash_config")
    if not isinstance(values, Mapping):
        raise ModelFileError(f"{read.path}: dflash_config is {values!r}; allowed: an object of {', '.join(_REQUIRED)}")
    missing = [key for key in _REQUIRED if key not in values]
    unknown = sorted(set(values) - {*_REQUIRED, *_OPTIONAL})
    if missing or unknown:
        raise ModelFileError(
            f"{read.path}: dflash_config lacks {missing} and has {unknown}; "
            f"allowed: {', '.join(_REQUIRED)}, and if need be {', '.join(_OPTIONAL)}"
        )
    return ConfigFields(read.path, values)


def _within(read: ConfigFields, key: str, low: int, high: int) -> int:
    value: Any = read.values[key]
    if type(value) is not int or not low <= value <= high:
        raise ModelFileError(f"{read.path}: {key} is {value!r}; allowed: {low} to {high}")
    return value


def _taps(read: ConfigFields) -> tuple[int, ...]:
    taps = read.values["target_layer_ids"]
    if (
        not isinstance(taps, list)
        or not taps
        or any(type(tap) is not int or tap < 0 for tap in taps)
        or taps != sorted(set(taps))
    ):
        raise ModelFileError(f"{read.path}: target_layer_ids {taps!r}; allowed: layer numbers, ascending, one at least")
    return tuple(taps)


def _windows(read: ConfigFields) -> tuple[int | None, ...]:
    count = read.layers()
    window = None if read.values.get("sliding_window") is None else read.size("sliding_window")
    kinds = read.values.get("layer_types", [_FULL if window is None else _SLIDING] * count)
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (_SLIDING, _FULL) for kind in kinds):
        raise ModelFileError(f"{read.path}: layer_types {kinds!r}; allowed: {count} of {_SLIDING}, {_FULL}")
    if window is None and _SLIDING in kinds:
        raise ModelFileError(f"{read.path}: a {_SLIDING} layer without sliding_window; give the window")
    return tuple(window if kind == _SLIDING else None for kind in kinds)
