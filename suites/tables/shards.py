"""Shards of the carried model's fused GDN in-projection, before and after the repair of the scales' alignment."""

from __future__ import annotations

import numpy as np
import torch

from engine.linear.adapter import adapt_nvfp4
from engine.linear.admission import Admitted, admit
from engine.linear.nvfp4 import Nvfp4Matrix
from engine.model.bundled import quasar_tiny_path
from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import HybridConfig, LayerKind, read_hybrid_config
from engine.model.hybrid_shards import hybrid_projections
from engine.training.batches import NO_LABEL
from engine.training.target import GdnMixer, Layer
from suites.oracles.arrays import F64
from suites.oracles.judge import relative_l2
from suites.oracles.shards import rows_of_rank
from suites.tables.carried import Settings, held_out
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table, spread
from suites.targets import f64
from suites.tp_admission.packed_weights import Nvfp4Weights

TP = 2
MISALIGNED = 16  # columns that the packed scales were padded to; the layout counts in 32
ROWS = 64


def shards(settings: Settings) -> Table:
    """Relative L2 of every rank's share at TP 2: scales padded to 16 columns, to 32; and TP 4, which hid it."""
    config = read_hybrid_config(quasar_tiny_path())
    inputs, weights = gdn_inputs(ROWS), gdn_weights(config)
    seed = published("precision")["tp2_gdn_relative_l2"]
    rows = []
    for tp in (TP, 2 * TP):
        admitted = admitted_at(config, tp)
        pairs = [
            errors(admitted, weights[layer], heads_of(config), rank, inputs[layer])
            for layer in weights
            for rank in range(tp)
        ]
        before, after = ([pair[index] for pair in pairs] for index in (0, 1))
        widths = f"{admitted.logical_n} to {admitted.physical_n}"
        rows.append((f"TP {tp}, here", f"{len(pairs)}", widths, spread(before), spread(after)))
    theirs = (
        f"{seed['shards']}",
        f"{seed['logical_width']} to {seed['physical_width']}",
        *(spread(seed[when]) for when in ("before", "after")),
    )
    return Table(
        "TP 2 shards of the fused GDN in-projection: relative L2 from the exact product",
        ("", "shards", "logical to stored width", f"scales aligned to {MISALIGNED}", "as stored now"),
        (*rows, (f"TP 2, {PUBLISHED}", *theirs)),
        (
            f"The carried NVFP4 weights of all {len(weights)} GDN layers, {ROWS} rows of held-out text, against fp64.",
            "Aligned to 16 is the planted defect; at TP 4 the width pads to a multiple of 32 either way, which hid it.",
        ),
    )


def admitted_at(config: HybridConfig, tp: int) -> Admitted:
    """The admission table's row of the in-projection."""
    projection = next(one for one in hybrid_projections(config, "nvfp4") if one.name == "gdn in")
    answer = admit(projection, tp)
    if not isinstance(answer, Admitted):
        raise RuntimeError(f"the in-projection is refused: {answer}")
    return answer


def heads_of(config: HybridConfig) -> tuple[tuple[int, int], ...]:
    """(heads, rows per head) of the sections q, k, v, z, b, a."""
    gdn = config.gdn
    keys, values = (gdn.key_heads, gdn.key_dim), (gdn.value_heads, gdn.value_dim)
    return (keys, keys, values, values, (gdn.value_heads, 1), (gdn.value_heads, 1))


def gdn_weights(config: HybridConfig) -> dict[int, Nvfp4Weights]:
    """By layer: the whole fused in-projection as stored, rows [q | k | v | z | b | a]."""
    found = {}
    widths = {"qkv": config.gdn.conv_dim, "z": config.gdn.values, "b": config.gdn.value_heads}
    widths["a"] = widths["b"]
    with Checkpoint(quasar_tiny_path()) as checkpoint:
        for layer, kind in enumerate(config.layers):
            if kind is not LayerKind.GDN:
                continue
            parts = [
                checkpoint.take_matrix(
                    f"model.layers.{layer}.linear_attn.in_proj_{name}.weight", width, config.hidden_size
                )
                for name, width in widths.items()
            ]
            found[layer] = _joined([part for part in parts if isinstance(part, Nvfp4Matrix)])
    return found


def _joined(parts: list[Nvfp4Matrix]) -> Nvfp4Weights:
    scales = {part.global_scale for part in parts}
    if len(scales) != 1:
        raise RuntimeError(f"global scales {sorted(scales)} in one product; the carried model shares one")
    return Nvfp4Weights(
        torch.cat([part.codes for part in parts]).numpy(),
        torch.cat([part.scales.view(torch.uint8) for part in parts]).numpy(),
        scales.pop(),
    )


def gdn_inputs(rows: int) -> dict[int, F64]:
    """By layer: ``rows`` rows of held-out text as they enter its in-projection, FP16 numbers."""
    target, batches = held_out()
    mixers = {
        index: layer.mixer
        for index, layer in enumerate(target.layers)
        if isinstance(layer, Layer) and isinstance(layer.mixer, GdnMixer)
    }
    found: dict[int, F64] = {}
    hooks = []
    for index, mixer in mixers.items():

        def keep(_: torch.nn.Module, given: tuple[torch.Tensor, ...], index: int = index) -> None:
            found[index] = f64(given[0][wanted][:rows].half())

        hooks.append(mixer.register_forward_pre_hook(keep))
    wanted = batches[0].labels != NO_LABEL
    target(batches[0].token_ids)
    for hook in hooks:
        hook.remove()
    return found


def errors(
    admitted: Admitted, whole: Nvfp4Weights, heads: tuple[tuple[int, int], ...], rank: int, x: F64
) -> tuple[float, float]:
    """Relative L2 of one rank's product with scales aligned to 16, and with the engine's own weights."""
    own = whole.rows(np.array(rows_of_rank(heads, admitted.tp, rank)))
    expected = own.product(x)
    projection = adapt_nvfp4(admitted, [own.matrix()])
    parts = projection.run(torch.from_numpy(x).float(), projection.buffer(len(x)))
    got = f64(torch.cat(parts, dim=1))
    return relative_l2(own.misread(MISALIGNED).product(x), expected), relative_l2(got, expected)
