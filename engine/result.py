"""What a request came to: its tokens, how the rounds went, and the times that a round's figure is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.request import Request, SamplingParams
from engine.sampling.rules import TokenLogprob
from engine.steps.records import Acceptance, Committed, Fault, FinishReason
from engine.token_hash import tokens_sha256


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the steps of one round. Drafting and verification are of all sequences of the round together, the
    other two of this one; what a draft model makes of the accepted tokens counts as drafting, in the round after.
    """

    draft_s: float
    verify_s: float
    reject_s: float
    commit_s: float

    @property
    def overhead_s(self) -> float:
        """All but the verification, which is the target's own work."""
        return self.draft_s + self.reject_s + self.commit_s


class StepClock:
    """Runs through one round: made when drafting begins, told of the end of drafting and of verification."""

    def __init__(self, earlier_s: float = 0.0) -> None:
        """``earlier_s`` were spent on this round's drafts before it began."""
        self._draft_s = self._verify_s = 0.0
        self._earlier_s = earlier_s
        self._last = time.perf_counter()

    def drafted(self) -> None:
        """Drafting has ended."""
        self._draft_s = self._lap() + self._earlier_s

    def verified(self) -> None:
        """Verification has ended."""
        self._verify_s = self._lap()

    def times(self, *, reject_s: float, commit_s: float) -> StepTimes:
        """The record of one sequence of the round."""
        return StepTimes(self._draft_s, self._verify_s, reject_s, commit_s)

    def _lap(self) -> float:
        now = time.perf_counter()
        before, self._last = self._last, now
        return now - before


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Log probability of an emitted token under the head's own logits, and of the likeliest tokens beside it."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The record of one request. Times are host seconds of one monotonic clock.

    ``emitted`` has one number per round; prefill and the first token belong to no round. ``acceptance_histogram[n]``
    counts the rounds in which n drafted tokens became part of the text. ``logprobs`` has one report per token where the
    request asked for them, otherwise none.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    seed: int
    emitted: tuple[int, ...]
    acceptance_histogram: tuple[int, ...]
    arrival_ts: float
    token_ts: tuple[float, ...]  # of the first token, then of the last token of each round
    step_times: tuple[StepTimes, ...] = ()  # one a round
    logprobs: tuple[TokenReport, ...] = ()
    error: str | None = None  # why the request failed, exactly where the finish reason is "error"

    def __post_init__(self) -> None:
        if (self.error is None) == (self.finish_reason is FinishReason.ERROR):
            raise ValueError(f"finish reason {self.finish_reason} with error {self.error!r}; allowed: both or neither")
        if len(self.token_ts) != self.rounds + bool(self.token_ids):
            raise ValueError(
                f"{len(self.token_ts)} times for {self.rounds} rounds; allowed: one more, the first token's"
            )
        if len(self.step_times) != self.rounds or len(self.logprobs) not in (0, len(self.token_ids)):
            raise ValueError(
                f"{len(self.step_times)} step times for {self.rounds} rounds, {len(self.logprobs)} reports for "
                f"{len(self.token_ids)} tokens; allowed: as many times as rounds, and no report or one per token"
            )

    @property
    def rounds(self) -> int:
        """Rounds of draft, verify, reject and commit."""
        return len(self.emitted)

    @property
    def emitted_per_round(self) -> float | None:
        """Mean number of tokens per round; None without a round."""
        return sum(self.emitted) / self.rounds if self.rounds else None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token; None when there is none."""
        return self.token_ts[0] - self.arrival_ts if self.token_ts else None

    @property
    def round_ms(self) -> float | None:
        """1000 * (last token - first token) / rounds: prefill and the first token are outside. None without a round."""
        return 1000 * (self.token_ts[-1] - self.token_ts[0]) / self.rounds if self.rounds else None

    @property
    def round_times_ms(self) -> tuple[float, ...]:
        """Each round's own time, in order."""
        return tuple(1000 * (end - start) for start, end in zip(self.token_ts, self.token_ts[1:], strict=False))

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first over the time since the first; None without a round."""
        return (len(self.token_ids) - 1) / (self.token_ts[-1] - self.token_ts[0]) if self.rounds else None

    @property
    def overhead_share(self) -> float | None:
        """What the rounds spent on anything but the target's forward and laws, of all their time; None without one."""
        if not self.rounds:
            return None
        return sum(times.overhead_s for times in self.step_times) / (self.token_ts[-1] - self.token_ts[0])

    @property
    def tokens_sha256(self) -> str:
        """The token control: SHA-256 over the emitted ids as little-endian int32."""
        return tokens_sha256(self.token_ids)


def refused(reason: str, params: SamplingParams, max_drafts: int) -> GenerationResult:
    """The record of a request that could not run at all: no tokens, and no random number drawn for its seed."""
    return GenerationResult(
        prompt_token_ids=(),
        token_ids=(),
        text="",
        finish_reason=FinishReason.ERROR,
        seed=params.seed or 0,
        emitted=(),
        acceptance_histogram=(0,) * (max_drafts + 1),
        arrival_ts=time.perf_counter(),
        token_ts=(),
        error=reason,
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """The end of prefill (``accepted`` None) or of one round."""

    committed: Committed
    accepted: int | None
    ts: float
    times: StepTimes | None
    reports: tuple[TokenReport, ...]


@dataclass(slots=True)
class Recorder:
    """Collects what a `GenerationResult` states while the request runs.

    Each step adds one entry, so that an interrupt between any two instructions leaves a record that holds together.
    """

    request: Request
    arrival_ts: float
    max_drafts: int
    fault: Fault | None = None
    _entries: list[_Entry] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether the first token is there."""
        return bool(self._entries)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended, or None while it has not."""
        if self.fault is not None:
            return FinishReason.ERROR
        return self._entries[-1].committed.finish_reason if self._entries else None

    def first_token(self, committed: Committed, now: float, reports: Sequence[TokenReport] = ()) -> None:
        """The end of prefill."""
        self._entries.append(_Entry(committed, None, now, None, tuple(reports)))

    def round(
        self,
        acceptance: Acceptance,
        committed: Committed,
        now: float,
        times: StepTimes,
        reports: Sequence[TokenReport] = (),
    ) -> None:
        """The end of one round. A draft that was accepted after the reply's last token did not become text."""
        accepted = min(len(acceptance.accepted), len(committed.token_ids))
        self._entries.append(_Entry(committed, accepted, now, times, tuple(reports)))

    def fail(self, fault: Fault) -> None:
        """The end, without a token."""
        self.fault = fault

    def result(self, text: str) -> GenerationResult:
        """What there is so far; without a finish reason it counts as aborted."""
        histogram = [0] * (self.max_drafts + 1)
        rounds = [entry for entry in self._entries if entry.accepted is not None]
        for entry in rounds:
            histogram[entry.accepted or 0] += 1
        return GenerationResult(
            prompt_token_ids=self.request.prompt_token_ids,
            token_ids=tuple(token_id for entry in self._entries for token_id in entry.committed.token_ids),
            text=text,
            finish_reason=self.finish_reason or FinishReason.ABORTED,
            seed=self.request.seed,
            emitted=tuple(len(entry.committed.token_ids) for entry in rounds),
            acceptance_histogram=tuple(histogram),
            arrival_ts=self.arrival_ts,
            token_ts=tuple(entry.ts for entry in self._entries),
            step_times=tuple(entry.times for entry in rounds if entry.times is not None),
            logprobs=tuple(report for entry in self._entries for report in entry.reports),
            error=None if self.fault is None else self.fault.reason,
        )
