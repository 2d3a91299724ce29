"""What a request came to: its tokens, how the rounds went, and the times that a round's figure is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Request
from engine.steps.records import Acceptance, Committed, FinishReason
from engine.token_hash import tokens_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The record of one request. Times are host seconds of one monotonic clock.

    ``emitted`` has one number a round; prefill and the first token belong to no round. ``acceptance_histogram[n]``
    counts the rounds in which n drafted tokens became part of the text.
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

    @property
    def rounds(self) -> int:
        """Rounds of draft, verify, reject and commit."""
        return len(self.emitted)

    @property
    def emitted_per_round(self) -> float | None:
        """Mean number of tokens a round; None without a round."""
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
    def tokens_sha256(self) -> str:
        """The token control: SHA-256 over the emitted ids as little-endian int32."""
        return tokens_sha256(self.token_ids)


@dataclass(slots=True)
class Recorder:
    """Collects what a `GenerationResult` states while the request runs."""

    request: Request
    arrival_ts: float
    max_drafts: int
    token_ids: list[int] = field(default_factory=list)
    token_ts: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    histogram: list[int] = field(init=False)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.histogram = [0] * (self.max_drafts + 1)

    def first_token(self, committed: Committed, now: float) -> None:
        """The end of prefill."""
        self._add(committed, now)

    def round(self, acceptance: Acceptance, committed: Committed, now: float) -> None:
        """The end of one round."""
        self.emitted.append(len(committed.token_ids))
        self.histogram[min(len(acceptance.accepted), len(committed.token_ids))] += 1
        self._add(committed, now)

    def result(self, text: str) -> GenerationResult:
        """What there is so far; without a finish reason it counts as aborted."""
        return GenerationResult(
            prompt_token_ids=self.request.prompt_token_ids,
            token_ids=tuple(self.token_ids),
            text=text,
            finish_reason=self.finish_reason or FinishReason.ABORTED,
            seed=self.request.seed,
            emitted=tuple(self.emitted),
            acceptance_histogram=tuple(self.histogram),
            arrival_ts=self.arrival_ts,
            token_ts=tuple(self.token_ts),
        )

    def _add(self, committed: Committed, now: float) -> None:
        self.token_ids += committed.token_ids
        self.token_ts.append(now)
        self.finish_reason = committed.finish_reason
