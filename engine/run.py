"""A request on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.model.tokenizer import TextStream
from engine.request import Request
from engine.result import GenerationResult, Recorder, StepTimes, TokenReport
from engine.sampling.random import Purpose, random_bits, unit_interval
from engine.state.sequence import SequenceState
from engine.steps.records import Acceptance, Committed, Fault, Proposal, Verification


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """The random numbers of one request: they depend on its seed, the position and the purpose, on nothing else."""

    seed: int

    def bits(self, position: int, purpose: Purpose) -> int:
        """64 random bits for one decision."""
        return random_bits(self.seed, position, purpose)

    def uniform(self, position: int, purpose: Purpose) -> float:
        """The same bits in (0, 1)."""
        return unit_interval(self.bits(position, purpose))


@dataclass(slots=True, eq=False)
class Run:
    """What was asked, where it stands, what was recorded. ``text`` grows as tokens are committed."""

    request: Request
    sequence: SequenceState
    recorder: Recorder
    text_stream: TextStream
    noise: SeedNoise
    text: str = ""

    @property
    def finished(self) -> bool:
        """Whether the request has ended by itself."""
        return self.recorder.finish_reason is not None

    @property
    def drafts_allowed(self) -> int:
        """Drafts beyond the last token that may be emitted would be verified for nothing."""
        return self.request.max_tokens - self.sequence.num_emitted - 1

    def record(
        self,
        acceptance: Acceptance,
        committed: Committed,
        now: float,
        times: StepTimes,
        reports: Sequence[TokenReport] = (),
    ) -> None:
        """Take note of a first token or of a round; a finished text gives up its last incomplete character."""
        if self.recorder.begun:
            self.recorder.round(acceptance, committed, now, times, reports)
        else:
            self.recorder.first_token(committed, now, reports)
        self.text += self.text_stream.push(committed.token_ids)
        if self.finished:
            self.text += self.text_stream.finish()

    def fail(self, fault: Fault) -> None:
        """End with an error; what was emitted stays."""
        self.recorder.fail(fault)
        self.text += self.text_stream.finish()

    def result(self) -> GenerationResult:
        """What there is so far."""
        return self.recorder.result(self.text)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What happened to one request in one step. The end of a prompt is the verification of an empty proposal too."""

    run: Run
    proposal: Proposal
    verification: Verification
    acceptance: Acceptance
    committed: Committed


class RoundObserver(Protocol):
    """Who is told of every round of an engine, as soon as it is committed."""

    def round(self, seen: Round) -> None:
        """The laws can be asked now; the next forward writes over the logits behind them."""
