"""What a caller asks for: one prompt, how to sample it, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InputError
from engine.sampling.rules import NO_RULES, LogitsRules

MAX_SEED = 2**63 - 1

# The sampling ops take float32 and int32: what they would round to infinity or to 0 means nothing.
MAX_TEMPERATURE = 1e30
MIN_TOP_P = 1e-30
MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. Values that mean nothing are refused here, before any work.

    ``temperature`` 0 is greedy (the lowest id wins a tie); ``top_k`` and ``top_p`` then play no part.
    ``top_k`` 0 keeps the whole vocabulary; ``top_p`` 1.0 keeps all of it too.
    ``seed`` names the random streams; ``None`` draws a fresh seed, which the result records.
    ``stop_token_ids`` ``None`` stands for the model's own end tokens; an empty tuple never stops early.
    ``rules`` are what else is asked of the logits (bias, bans, penalties, min-p), before the cutoffs.
    ``logprobs`` reports the log probability of each token, and of so many of the likeliest beside it; ``None``: none.
    ``draft_tokens`` limits the drafts of a round for this request, 0 for plain decode; ``None``: the engine's own.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] | None = None
    rules: LogitsRules = NO_RULES
    logprobs: int | None = None
    draft_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise InputError(
                f"temperature is {self.temperature}; allowed: 0 (greedy) or a finite number above 0, "
                f"up to {MAX_TEMPERATURE:g}"
            )
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise InputError(
                f"top-k is {self.top_k}; allowed: 0 (off) or a whole number of candidates, 1 or more, up to {MAX_TOP_K}"
            )
        if not MIN_TOP_P <= self.top_p <= 1:
            raise InputError(f"top-p is {self.top_p}; allowed: above 0 ({MIN_TOP_P:g} at least), up to 1.0 (off)")
        if self.max_tokens < 1:
            raise InputError(f"max-tokens is {self.max_tokens}; allowed: 1 or more")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed is {self.seed}; allowed: 0 to {MAX_SEED}")
        if self.logprobs is not None and self.logprobs < 0:
            raise InputError(f"logprobs is {self.logprobs}; allowed: 0 (of the token alone) or more")
        if self.draft_tokens is not None and self.draft_tokens < 0:
            raise InputError(f"draft-tokens of the request is {self.draft_tokens}; allowed: 0 (plain decode) or more")

    @property
    def greedy(self) -> bool:
        """Whether every token is the arg max and no random number is drawn."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Request:
    """One admitted request: every field is resolved, nothing is looked up later.

    ``max_tokens`` is already capped by the context; ``seed`` is the one that will be used.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    stop_token_ids: frozenset[int]

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise InputError("the prompt has no tokens; allowed: at least one")
        if self.max_tokens < 1:
            raise InputError(f"request {self.request_id} may emit {self.max_tokens} tokens; allowed: 1 or more")
