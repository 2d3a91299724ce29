"""Ways in which a sampler goes wrong: those that were seen in the wild, and those that a reviewer objected to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from suites.defects import Defect

_ROWS = "suites/sampling/test_boundary_rows.py"
_BATCHES = "suites/sampling/test_boundary_batches.py"
_INVARIANCE = "suites/sampling/test_row_invariance.py"
_COPY = "suites/sampling/test_no_copy_no_sync.py"
_RULES = "suites/sampling/test_rules.py"
_DRAWS = "suites/sampling/test_seeded_draws.py"

Op = Callable[..., Tensor]
Decide = Callable[[Tensor, int, float], tuple[float, int]]
"""A faulty rule: a row after temperature, k (V where it is off) and p give the cut value and the first kept tie."""

FLAGS = 3


def _key(value: float) -> int:
    """Order-preserving int32 pattern of an fp32 value, as plans hold it."""
    bits = int(torch.tensor([value + 0.0], dtype=torch.float32).view(torch.int32)) & 0xFFFF_FFFF
    key = 0xFFFF_FFFF - bits if bits >> 31 else bits + 0x8000_0000
    return key - (1 << 32) if key >> 31 else key


def _decided_by(rule: Decide, applies: Callable[[Tensor], bool] = lambda logits: True) -> Callable[[Op], Op]:
    """Plans whose ordinary rows with a cut are decided by ``rule``."""

    def spoil(original: Op) -> Op:
        def sampling_plan(
            logits: Tensor,
            top_k: Tensor | None = None,
            top_p: Tensor | None = None,
            temperature: Tensor | None = None,
            *,
            out: Tensor | None = None,
        ) -> Tensor:
            plan = original(logits, top_k, top_p, temperature, out=out)
            for index in range(logits.shape[0] if applies(logits) else 0):
                width = logits.shape[1]
                k = width if top_k is None or not 0 < int(top_k[index]) < width else int(top_k[index])
                p = 1.0 if top_p is None else float(top_p[index])
                if int(plan[index, FLAGS]) or (k == width and p >= 1):
                    continue
                row = logits[index] if temperature is None else logits[index] / temperature[index]
                cut, first_tie = rule(row, k, p)
                plan[index, 1], plan[index, 2] = _key(cut), first_tie
            return plan

        return sampling_plan

    return spoil


def _order(row: Tensor) -> Tensor:
    """Ids by value descending, then id descending."""
    return torch.flip(torch.sort(row, stable=True).indices, [0])


def _nucleus(row: Tensor, kept: Tensor, p: float, total: float) -> int:
    """How many of the ordered ids ``kept`` have less than ``p`` of ``total`` ahead of them; at least one."""
    weights = torch.exp((row[kept] - row.max()).double())
    return max(1, int((torch.cumsum(weights, 0) - weights < p * total).sum())) if p < 1 else len(kept)


def _exactly_k(row: Tensor, k: int, p: float) -> tuple[float, int]:
    kept = _order(row)[:k]
    total = float(torch.exp((row[kept] - row.max()).double()).sum())
    last = kept[_nucleus(row, kept, p, total) - 1]
    return float(row[last]), int(last)


def _mass_of_k(row: Tensor, k: int, p: float) -> tuple[float, int]:
    order = _order(row)
    kept = order[row[order] >= row[order[k - 1]]]
    total = float(torch.exp((row[order[:k]] - row.max()).double()).sum())
    last = kept[_nucleus(row, kept, p, total) - 1]
    return float(row[last]), int(last) if p < 1 else 0


def _midpoint_pivot(row: Tensor, k: int, p: float) -> tuple[float, int]:
    """Bisects values for 18 steps and keeps what reaches the midpoint that is left: a tie is never split."""
    threshold = float(torch.topk(row, k).values[-1])
    weights = torch.where(row >= threshold, torch.exp((row - row.max()).double()), 0.0)
    low, high = threshold, float(row.max())
    for _ in range(18):
        middle = (low + high) / 2
        enough = float(weights[row >= middle].sum()) >= p * float(weights.sum())
        low, high = (middle, high) if enough else (low, middle)
    return (low + high) / 2, 0


def _rebuilt_by_log(row: Tensor, k: int, p: float) -> tuple[float, int]:
    """The right cut, sent through exp and log."""
    order = _order(row)
    kept = order[row[order] >= row[order[k - 1]]]
    total = float(torch.exp((row[kept] - row.max()).double()).sum())
    last = kept[_nucleus(row, kept, p, total) - 1]
    share = torch.exp(row[last] - row.max()) / total
    return float(torch.log(share * total) + row.max()), int(last) if p < 1 else 0


def _lowest_ids_stay(original: Op) -> Op:
    """A split tie keeps as many entries as it should, but those that a scan meets first."""

    def sampling_apply(
        logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, mask_value: float = -math.inf
    ) -> Tensor:
        before = logits.clone()
        original(logits, plan, temperature, mask_value=mask_value)
        for index in range(logits.shape[0]):
            first = int(plan[index, 2])
            if first == 0 or int(plan[index, FLAGS]):
                continue
            row = before[index] if temperature is None else before[index] / temperature[index]
            tied = torch.nonzero(row == row[first]).flatten()
            logits[index, tied] = mask_value
            logits[index, tied[: int((tied >= first).sum())]] = row[first]
        return logits

    return sampling_apply


def _first_rows_p(original: Op) -> Op:
    def sampling_plan(
        logits: Tensor, top_k: Tensor | None = None, top_p: Tensor | None = None, *rest: Any, **options: Any
    ) -> Tensor:
        shared = None if top_p is None else torch.full_like(top_p, float(top_p[0]))
        return original(logits, top_k, shared, *rest, **options)

    return sampling_plan


def _plans_a_clone(original: Op) -> Op:
    return lambda logits, *rest, **options: original(logits.clone(), *rest, **options)


def _asks_the_device(original: Op) -> Op:
    """Looks for NaN on the host's side before every plan."""

    def sampling_plan(logits: Tensor, *rest: Any, **options: Any) -> Tensor:
        if torch.isnan(logits).any():
            return original(logits, *rest, **options)
        return original(logits, *rest, **options)

    return sampling_plan


def _recovery_uses_the_drafts_noise(original: Callable[..., tuple[int, int, int, int]]) -> Callable[..., Any]:
    def counter(position: int, purpose: int, index: int) -> tuple[int, int, int, int]:
        words = original(position, purpose, index)
        return (words[0], 0, *words[2:]) if words[1] == 2 else words

    return counter


def _min_p_before_the_rules(original: Callable[..., None]) -> Callable[..., None]:
    def apply_rules(logits: Tensor, params: Any, history: Any, drafts: Any) -> None:
        from engine.sampling.processors import min_p_inplace

        min_p_inplace(logits, [params.rules.min_p] * len(logits), [params.temperature] * len(logits))
        original(logits, params, history, drafts)

    return apply_rules


def _every_draft_in_front_of_every_row(original: Callable[..., None]) -> Callable[..., None]:
    def apply_rules(logits: Tensor, params: Any, history: Any, drafts: Any) -> None:
        original(logits, params, type(history)(history.prompt, (*history.output, *drafts)), ())

    return apply_rules


def _reports_of_the_row_behind(original: Callable[..., Any]) -> Callable[..., Any]:
    def reports_of(verification: Any, committed: Any, params: Any) -> Any:
        from dataclasses import replace

        return original(replace(verification, head_logits=verification.head_logits.roll(-1, 0)), committed, params)

    return reports_of


def _plan(name: str, description: str, spoil: Callable[[Op], Op], *must_go_red: str) -> Defect:
    return Defect(name, description, "sampling", "engine.ops.sampling", "sampling_plan", spoil, must_go_red)


DEFECTS = (
    _plan(
        "sampling-exactly-k",
        "top-k keeps exactly k entries instead of every one that ties with the k-th",
        _decided_by(_exactly_k),
        f"{_ROWS}::test_ties[05-tie crosses k]",
        f"{_ROWS}::test_ties[12-k meets the second tie]",
        f"{_ROWS}::test_ties[13-all equal, top-k only]",
        f"{_ROWS}::test_edges[35-ties at the end, k 20]",
        f"{_ROWS}::test_edges[36-5000 ties at k]",
    ),
    Defect(
        "sampling-scan-order-ties",
        "a tie split by the nucleus keeps the lowest ids",
        "sampling",
        "engine.ops.sampling",
        "sampling_apply",
        _lowest_ids_stay,
        (
            f"{_ROWS}::test_ties[07-tie crosses k, nucleus drops one]",
            f"{_ROWS}::test_ties[14-all equal, p .95]",
            f"{_ROWS}::test_ties[19-many then few, p .6]",
            f"{_ROWS}::test_edges[37-scattered ties split]",
        ),
    ),
    _plan(
        "sampling-mass-of-k",
        "top-p is normalised over k entries instead of the tie-enlarged set",
        _decided_by(_mass_of_k),
        f"{_ROWS}::test_ties[07-tie crosses k, nucleus drops one]",
        f"{_ROWS}::test_ties[14-all equal, p .95]",
        f"{_ROWS}::test_edges[36-5000 ties, nucleus splits them]",
    ),
    _plan(
        "sampling-midpoint-pivot",
        "the cut is the midpoint at which a search over values stops",
        _decided_by(_midpoint_pivot),
        f"{_ROWS}::test_ties[08-tie crosses k, nucleus keeps one]",
        f"{_ROWS}::test_ties[15-all equal, p .6]",
        f"{_ROWS}::test_ties[20-few then many, p .95]",
    ),
    _plan(
        "sampling-log-exp-rebuild",
        "the cut goes through exp and log",
        _decided_by(_rebuilt_by_log),
        f"{_INVARIANCE}::test_twin[ordinary]",
        f"{_INVARIANCE}::test_twin[half]",
        f"{_INVARIANCE}::test_twin[flat]",
    ),
    _plan(
        "sampling-first-rows-p",
        "every row is cut with the first row's top-p",
        _first_rows_p,
        f"{_BATCHES}::test_39_mixed_batch_equals_solo[32768]",
        f"{_INVARIANCE}::test_batch_and_row_index[8]",
    ),
    _plan(
        "sampling-clones-the-logits",
        "every plan works on a copy of the logits",
        _plans_a_clone,
        f"{_COPY}::test_step_makes_only_small_tensors[ordinary]",
        f"{_COPY}::test_step_makes_only_small_tensors[off]",
    ),
    _plan(
        "sampling-asks-the-device",
        "every plan waits for an .any() over the logits",
        _asks_the_device,
        f"{_COPY}::test_step_makes_only_small_tensors[ordinary]",
        f"{_COPY}::test_step_makes_only_small_tensors[top-k only]",
    ),
    _plan(
        "sampling-batch-dependent-path",
        "batches of 8 rows and more go to a kernel with another tie rule",
        _decided_by(_exactly_k, lambda logits: logits.shape[0] >= 8),
        f"{_BATCHES}::test_39_mixed_batch_equals_solo[32768]",
        f"{_INVARIANCE}::test_batch_and_row_index[8]",
    ),
    Defect(
        "sampling-min-p-before-the-rules",
        "min-p is asked of the head's logits, before bans and penalties",
        "sampling",
        "engine.steps.laws",
        "_apply_rules",
        _min_p_before_the_rules,
        (f"{_RULES}::test_the_law_of_each_row_of_a_verification[0.7]",),
    ),
    Defect(
        "sampling-penalties-of-every-draft",
        "each row of a verification is penalised for all drafts of the round, those behind it too",
        "sampling",
        "engine.steps.laws",
        "_apply_rules",
        _every_draft_in_front_of_every_row,
        (f"{_RULES}::test_the_law_of_each_row_of_a_verification",),
    ),
    Defect(
        "sampling-reports-of-the-row-behind",
        "a token's log probability is read from the row that follows its own",
        "sampling",
        "engine.steps.report",
        "reports_of",
        _reports_of_the_row_behind,
        (f"{_RULES}::test_the_law_of_each_row_of_a_verification",),
    ),
    Defect(
        "sampling-shared-noise",
        "the recovered token is drawn with the noise that drew the draft",
        "sampling",
        "engine.sampling.random",
        "_counter",
        _recovery_uses_the_drafts_noise,
        (
            f"{_DRAWS}::test_speculative_round_keeps_the_law",
            f"{_DRAWS}::test_streams_are_uniform_and_independent",
        ),
    ),
)
