"""From logits to the laws that reject judges by: rules in place, then each row's temperature and cutoffs.

Two forms, equal token for token. Dense: the law of a row lies in the logits, which are never copied. Sparse (see
`engine.steps.sparse`): the few tokens that the cutoffs can keep, taken out of the row, for requests that admit it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.config import LawForm
from engine.ops import sampling as ops
from engine.request import SamplingParams
from engine.sampling.cutoffs import RowSettings, plan_cutoffs, row_faults
from engine.sampling.distributions import target_probs, token_weights
from engine.sampling.processors import NO_HISTORY, RowHistory, min_p_inplace, process_inplace
from engine.sampling.random import int64_pattern
from engine.sampling.rules import NO_RULES
from engine.sampling.sampler import greedy
from engine.state.sequence import SequenceState
from engine.steps.records import DraftLaw, Fault, PointLaw, TargetLaw, TokenLaw, Verification
from engine.steps.sparse import SparseLaw, compact_rows, padded, sparse_refusal

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, eq=False)
class LogitsLaw:
    """The law of one row, evaluated where it lies: logits f32 [1, V] with their plan. Valid until the next forward.

    ``excluded`` is a token that is taken out (the residual of a point mass), or -1.
    """

    logits: torch.Tensor
    plan: torch.Tensor
    temperature: torch.Tensor | None
    excluded: int = _NO_TOKEN

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`; asked of a whole row only."""
        asked = torch.tensor([token_id], device=self.logits.device)
        (weight,) = token_weights(self.logits, self.plan, asked, self.temperature)
        return weight.probability

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`."""
        device = self.logits.device
        bits = torch.tensor([int64_pattern(random_bits)], device=device)
        excluded = torch.tensor([self.excluded], device=device)
        drawn = int(ops.sampling_draw(self.logits, self.plan, bits, self.temperature, excluded=excluded))
        # Nothing is left without the excluded token: it had all the mass, and only rounding can have rejected it.
        return drawn if drawn != _NO_TOKEN else self.excluded

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """See `TargetLaw`. Without its one token, the target needs no writing out."""
        return (
            self.without(draft.token_id) if isinstance(draft, PointLaw) else TokenLaw(*self.support()).residual(draft)
        )

    def without(self, token_id: int) -> LogitsLaw:
        """The same row with one token taken out; -1 takes nothing out."""
        return LogitsLaw(self.logits, self.plan, self.temperature, excluded=token_id)

    def support(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The tokens that the cutoffs keep, ascending, and their probabilities."""
        probs = target_probs(self.logits, self.plan, self.temperature)[0].cpu().numpy()
        kept = np.flatnonzero(probs)
        return kept, probs[kept]


def history_of(sequence: SequenceState, params: SamplingParams) -> RowHistory:
    """What the penalties of a request are about, where it has any rules; otherwise nothing is copied."""
    if params.rules == NO_RULES:
        return NO_HISTORY
    return RowHistory(sequence.token_ids[: sequence.num_prompt], sequence.emitted)


def verification_of(
    first_position: int,
    logits: torch.Tensor,
    params: SamplingParams,
    history: RowHistory = NO_HISTORY,
    drafts: Sequence[int] = (),
    form: LawForm = "dense",
    *,
    bound_greedy: Callable[[], list[int]] | None = None,
) -> Verification | Fault:
    """The law of each row of one request, logits f32 [rows, V], or why a row has none; other requests are untouched.

    ``history`` is what the request's penalties are about; row i is after it and the first i of ``drafts``. What the
    request's rules change is changed in ``logits``, and the report of log probabilities is of a copy made before. With
    ``form`` sparse, requests and rows that the sparse form does not take have dense laws. ``bound_greedy`` finds what
    `greedy` of ``logits`` would, for a caller that keeps it bound.
    """
    head_logits = logits.clone() if params.logprobs is not None else None
    _apply_rules(logits, params, history, drafts)
    laws: tuple[TargetLaw, ...] | Fault
    if params.greedy:
        laws = _greedy_laws(first_position, bound_greedy() if bound_greedy else greedy(logits).tolist())
    elif form == "sparse" and sparse_refusal(params) is None:
        laws = _sparse_laws(first_position, logits, params)
    else:
        laws = _cut_laws(first_position, logits, params)
    return laws if isinstance(laws, Fault) else Verification(first_position, laws, head_logits)


def _apply_rules(logits: torch.Tensor, params: SamplingParams, history: RowHistory, drafts: Sequence[int]) -> None:
    if params.rules == NO_RULES:
        return
    rows = range(len(logits))
    histories = [RowHistory(history.prompt, (*history.output, *drafts[:row])) for row in rows]
    process_inplace(logits, [params.rules] * len(rows), histories)
    min_p_inplace(logits, [params.rules.min_p] * len(rows), [params.temperature] * len(rows))


def _greedy_laws(first_position: int, best: list[int]) -> tuple[PointLaw, ...] | Fault:
    if _NO_TOKEN in best:
        return Fault(f"the logits of position {first_position + best.index(_NO_TOKEN)} are not finite")
    return tuple(PointLaw(token_id) for token_id in best)


def _cut_laws(first_position: int, logits: torch.Tensor, params: SamplingParams) -> tuple[LogitsLaw, ...] | Fault:
    settings = RowSettings.of([params] * len(logits), device=logits.device)
    plan = plan_cutoffs(logits, settings)
    for row, fault in enumerate(row_faults(plan)):
        if fault is not None:
            return Fault(f"position {first_position + row}: {fault}")
    temperature = settings.temperature
    return tuple(
        LogitsLaw(logits[row, None], plan[row, None], None if temperature is None else temperature[row, None])
        for row in range(len(logits))
    )


def _sparse_laws(first_position: int, logits: torch.Tensor, params: SamplingParams) -> tuple[TargetLaw, ...] | Fault:
    rows = compact_rows(logits, params)
    compact = [row for row in rows if row is not None]
    cut = _cut_laws(first_position, padded(compact), params) if compact else ()
    if isinstance(cut, Fault):
        raise RuntimeError(f"a compact row cannot be drawn from: {cut.reason}")  # `compact_rows` looks at that
    narrow = iter(cut)
    laws: list[TargetLaw] = []
    for index, row in enumerate(rows):
        if row is not None:
            laws.append(SparseLaw(row.token_ids, next(narrow)))
            continue
        whole = _cut_laws(first_position + index, logits[index, None], params)
        if isinstance(whole, Fault):
            return whole
        laws += whole
    return tuple(laws)
