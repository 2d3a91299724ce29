"""What weights, keys and values, and logits lose by how they are stored: on held-out text, teacher-forced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from engine.model.bundled import quasar_tiny_path
from engine.training import measure
from engine.training.batches import NO_LABEL
from suites.oracles import sampling as oracle
from suites.sampling import heads
from suites.tables.carried import LAW, Settings, held_out
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table
from suites.targets import CPU

_LOSSES = ("held_out_text_loss_sharpened", "held_out_text_loss")
TEXT = "Held-out conversations of `models/quasar-tiny/held_out_text.jsonl`, the answers' tokens alone."


def loss(settings: Settings) -> Table:
    """Held-out nats per token by how weights, keys and values are stored."""
    target, batches = held_out()
    of_the_run = journalled(quasar_tiny_path().parent / "journal.jsonl")
    rows = [
        (f"{weights}, float32 (the run's journal)", *of_the_run[phase])
        for phase, weights in (("target", "exact weights before NVFP4 tuning"), ("quantised", "NVFP4 weights"))
    ]
    for name, (stored, trained) in measure.losses_by_precision(target, batches).items():
        rows.append((f"NVFP4 weights, {name} keys and values", f"{stored:.4f}", f"{trained:.4f}"))
    return Table(
        "Held-out loss, nats a token",
        ("weights, keys and values", "T = 1 of what is stored", "T = 1 of what was trained"),
        tuple(rows),
        (TEXT, "Exact weights are not carried: the run measured them on the same text."),
    )


def journalled(path: Path) -> dict[str, tuple[str, ...]]:
    """By phase: what a run measured on the text that it left beside the model, sharpened as it is stored and before."""
    found: dict[str, dict[str, float]] = {}
    for entry in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        found.setdefault(entry["phase"], {}).update({key: entry[key] for key in _LOSSES if key in entry})
    return {
        phase: tuple(f"{losses[key]:.4f}" if key in losses else "" for key in _LOSSES)
        for phase, losses in found.items()
        if losses
    }


def kv(settings: Settings) -> Table:
    """The largest error of a head's keys or values through FP8, text by text."""
    target, batches = held_out()
    found = measure.kv_errors(target, batches)
    seed = published("precision")["kv_conversion_max_relative_l2"]
    rows = [
        (f"{name}, here", f"{row['largest']:.2f}", f"{row['E4M3']:.5f}", f"{row['E5M2']:.5f}")
        for name, row in found.items()
    ]
    return Table(
        "KV conversion: worst relative L2 of a head in a text",
        ("", "largest magnitude", "E4M3", "E5M2"),
        (*rows, (f"K and V, {PUBLISHED}", "", f"{seed['e4m3']:.5f}", f"{seed['e5m2']:.5f}")),
        (TEXT,),
    )


def head(settings: Settings) -> Table:
    """The nucleus of FP16 logits and of FP32 ones beside fp64, row by row: same hidden states, same weights."""
    hidden, weight = _head_rows()
    exact = heads.exact_logits(hidden, weight)
    seen = {
        "FP16 logits": _against(heads.fp16_logits(hidden, weight), exact),
        "FP32 logits": _against(heads.dense_logits(CPU, hidden, weight), exact),
    }
    rows = [
        (f"{name}, here", f"{len(exact):,}", f"{len(exact) - sum(tv_equal for _, tv_equal in pairs):,}", worst, whole)
        for name, (pairs, worst, whole) in seen.items()
    ]
    precision = published("precision")
    measured = precision["nucleus_support_rows_matching"]
    tv = precision["lm_head_row_tv"]
    return Table(
        "Head rows: the nucleus beside that of fp64 logits (top-k 20, top-p 0.95)",
        ("", "rows", "another nucleus", "worst TV behind the cut", "worst TV of the whole row"),
        (
            *rows,
            (f"FP16 logits, {PUBLISHED}", f"{measured['measured']}", "1", f"{tv['before']:.3g}", "0.00212"),
            (
                f"FP32 logits, {PUBLISHED}",
                f"{measured['measured']}",
                f"{measured['measured'] - measured['matching']}",
                f"{tv['after']:.3g}",
                "",
            ),
        ),
        (TEXT, "The published worst row is one row before and after; ours is the worst of all rows in each line."),
    )


def _head_rows() -> tuple[heads.F32, heads.F32]:
    """What goes into the head at every predicted token, and the head: FP16 numbers, as a card has them."""
    target, batches = held_out()
    last = len(target.layers) - 1
    found = []
    for batch in batches:
        _, (leaving,) = target(batch.token_ids, (last,))
        found.append(target.norm(leaving)[batch.labels != NO_LABEL])
    hidden: heads.F32 = torch.cat(found).half().float().numpy()
    weight: heads.F32 = target.embed_tokens.weight.half().float().numpy()
    return hidden, weight


def _against(logits: heads.F32, exact: heads.F64) -> tuple[Sequence[tuple[float, bool]], str, str]:
    """TV after the cut and equal support of every row; the worst of them, and the worst TV of the whole row."""
    top_p = float(np.float32(LAW["top_p"]))
    pairs = []
    for mine, theirs in zip(logits, exact, strict=True):
        one, other = oracle.rank(mine, LAW["top_k"]), oracle.rank(theirs, LAW["top_k"])
        tv = oracle.total_variation(one.probabilities(top_p, len(mine)), other.probabilities(top_p, len(mine)))
        pairs.append((tv, one.kept_ids(top_p) == other.kept_ids(top_p)))
    whole = np.abs(_softmax(logits.astype(np.float64)) - _softmax(exact)).sum(axis=1).max() / 2
    return pairs, f"{max(tv for tv, _ in pairs):.3g}", f"{whole:.3g}"


def _softmax(logits: heads.F64) -> heads.F64:
    weights: heads.F64 = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
