"""What reject will ask of a round, worked out on the device and brought to the host in one read.

The random numbers of a round are known before its logits are, because they depend on seed, position and purpose alone.
So every token that may be drawn is drawn where the logits lie, and one small tensor tells the host of all rows. Asked
for anything else (a draft that was drawn from a law of its own leaves a residual that is written out), a law still
asks its row on the device, which is a read more and the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.model.device import ModelDevice
from engine.ops import sampling as ops
from engine.ops.placement import fault_record, raise_on_fault, upload_no_sync
from engine.request import SamplingParams
from engine.sampling.cutoffs import RowSettings, plan_faults
from engine.sampling.distributions import TokenWeight
from engine.sampling.random import Purpose, int64_pattern
from engine.sampling.rules import NO_RULES
from engine.steps.laws import LogitsLaw
from engine.steps.records import DraftLaw, Fault, Noise, PointLaw, TargetLaw, Verification

_NO_TOKEN = -1
# Columns of what is read, after the four of the plan.
_WEIGHT, _TOTAL, _TARGET, _RECOVERED, _WIDTH = 4, 5, 6, 7, 8


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The rows of one request in a round: one after each of ``drafts`` and one before them."""

    first_position: int
    params: SamplingParams
    drafts: tuple[int, ...]
    noise: Noise

    @property
    def tokens(self) -> tuple[int, ...]:
        """The draft that each row judges; -1 for the last row, whose token nobody drafted."""
        return (*self.drafts, _NO_TOKEN)

    def bits(self, purpose: Purpose) -> list[int]:
        """The random number of each row; a greedy request draws nothing, so any will do."""
        if self.params.greedy:
            return [0] * len(self.tokens)
        return [self.noise.bits(self.first_position + row, purpose) for row in range(len(self.tokens))]


@dataclass(frozen=True, slots=True, eq=False)
class ReadLaw:
    """The law of one row with the answers that were read; ``row`` answers the rest."""

    row: LogitsLaw
    draft: int
    draft_probability: float
    target_bits: int
    target: int
    recover_bits: int
    recovered: int

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`."""
        return self.draft_probability if token_id == self.draft else self.row.probability(token_id)

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`."""
        return self.target if random_bits == self.target_bits else self.row.draw(random_bits)

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """See `TargetLaw`."""
        if isinstance(draft, PointLaw) and draft.token_id == self.draft:
            return ReadResidual(self.row.without(self.draft), self.recover_bits, self.recovered)
        return self.row.residual(draft)


@dataclass(frozen=True, slots=True, eq=False)
class ReadResidual:
    """What is left of a row without its draft."""

    row: LogitsLaw
    recover_bits: int
    recovered: int

    def probability(self, token_id: int) -> float:
        """See `TargetLaw`."""
        return self.row.probability(token_id)

    def draw(self, random_bits: int) -> int:
        """See `TargetLaw`."""
        return self.recovered if random_bits == self.recover_bits else self.row.draw(random_bits)

    def residual(self, draft: DraftLaw) -> TargetLaw:
        """See `TargetLaw`."""
        return self.row.residual(draft)


def ask_ahead(device: ModelDevice, asked: Sequence[Asked | None]) -> ReadAhead | None:
    """Send the questions of a forward, one a request; None stands for a request whose noise is not known yet.

    Returns None where the host asks its own memory, and where a request needs more than one read: with rules or reports
    its laws are not those of the logits as they are.
    """
    readable = [one for one in asked if one is not None and _one_read_tells(one.params)]
    everything = readable and len(readable) == len(asked)
    return ReadAhead(readable, device.device) if device.runs_kernels and everything else None


class ReadAhead:
    """The questions of one round, on the device before the forward runs; `read` gives the answers afterwards."""

    def __init__(self, asked: Sequence[Asked], device: torch.device) -> None:
        """Send settings, drafts and random numbers of all rows; waits for nothing."""
        self._asked = asked
        self._device = device
        params = [one.params for one in asked for _ in one.tokens]
        self._drafts = [token for one in asked for token in one.tokens]
        self._target_bits = [bits for one in asked for bits in one.bits(Purpose.TARGET)]
        self._recover_bits = [bits for one in asked for bits in one.bits(Purpose.RECOVER)]
        self._draws = not all(one.greedy for one in params)
        if not self._draws:
            # Nothing is random, so nothing has to travel.
            self._settings = RowSettings(temperature=torch.zeros(len(params), dtype=torch.float32, device=device))
            self._sent = torch.zeros(1, len(params), dtype=torch.int64, device=device)
            return
        self._settings = RowSettings.from_lists(
            [one.temperature for one in params],
            [0 if one.greedy else one.top_k for one in params],
            [1.0 if one.greedy else one.top_p for one in params],
            device=device,
        )
        drawn = (list(map(int64_pattern, bits)) for bits in (self._target_bits, self._recover_bits))
        self._sent = upload_no_sync([*drawn, self._drafts], torch.int64, device)

    def read(self, logits: torch.Tensor) -> list[Verification | Fault]:
        """The law of each row of ``logits`` f32 [rows, V], or why a request has none; one read, which waits.

        Raises ``ValueError`` where a kernel met an index that cannot be.
        """
        settings = self._settings
        plan, drawn = ops.sampling_sample(logits, self._sent[0], settings.top_k, settings.top_p, settings.temperature)
        answers = torch.zeros(len(logits), _WIDTH, dtype=torch.int64, device=self._device)
        answers[:, :_WEIGHT] = plan
        answers[:, _TARGET] = drawn
        if self._draws:
            drafts = self._sent[2]
            weighed = ops.sampling_weigh(logits, plan, drafts.clamp(min=0), settings.temperature)
            answers[:, _WEIGHT : _TOTAL + 1] = weighed
            recovered = ops.sampling_draw(logits, plan, self._sent[1], settings.temperature, excluded=drafts)
            answers[:, _RECOVERED] = recovered
        flat = torch.cat((fault_record(self._device).long(), answers.flatten())).tolist()
        fault, rows = flat[:4], flat[4:]
        if fault[0]:
            raise_on_fault(self._device)
        table = [rows[start : start + _WIDTH] for start in range(0, len(rows), _WIDTH)]
        return list(self._verifications(logits, plan, table))

    def _verifications(
        self, logits: torch.Tensor, plan: torch.Tensor, table: list[list[int]]
    ) -> Iterator[Verification | Fault]:
        reasons = plan_faults([row[:_WEIGHT] for row in table])
        end = 0
        for one in self._asked:
            start, end = end, end + len(one.tokens)
            bad = next((row for row in range(start, end) if reasons[row] is not None), None)
            if bad is not None:
                position = one.first_position + bad - start
                yield Fault(f"position {position}: {reasons[bad]}")
                continue
            laws = (self._law(row, logits, plan, table[row], one.params.greedy) for row in range(start, end))
            yield Verification(one.first_position, tuple(laws))

    def _law(self, row: int, logits: torch.Tensor, plan: torch.Tensor, answers: list[int], greedy: bool) -> TargetLaw:
        if greedy:
            return PointLaw(answers[_TARGET])
        temperature = self._settings.temperature
        whole = LogitsLaw(logits[row, None], plan[row, None], None if temperature is None else temperature[row, None])
        draft, recovered = self._drafts[row], answers[_RECOVERED]
        return ReadLaw(
            row=whole,
            draft=draft,
            draft_probability=TokenWeight(answers[_WEIGHT], answers[_TOTAL]).probability,
            target_bits=self._target_bits[row],
            target=answers[_TARGET],
            recover_bits=self._recover_bits[row],
            # Nothing is left without the draft: it had all the mass, and only rounding can have rejected it.
            recovered=draft if recovered == _NO_TOKEN else recovered,
        )


def _one_read_tells(params: SamplingParams) -> bool:
    return params.rules == NO_RULES and params.logprobs is None
