"""What a request may ask of its logits before its cutoffs, and the record of a log probability. Plain numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InputError

MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 1000.0  # further away a float32 logit need not stay finite


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsRules:
    """What one request asks of its logits; the defaults ask nothing. Values that mean nothing are refused here.

    ``repetition_penalty`` divides a positive logit and multiplies a negative one, once, by id of prompt or output.
    ``frequency_penalty`` is subtracted for each occurrence in the output, ``presence_penalty`` once if there is one.
    ``logit_bias`` is added by id. ``allowed_ids``, where given, are the only ids that may be drawn; ``banned_ids`` may
    never be. ``min_p`` removes what is less likely than this share of the likeliest, after temperature.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: frozenset[int] | None = None
    banned_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 / MAX_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            raise InputError(
                f"repetition penalty is {self.repetition_penalty}; allowed: above 0 (1 is off), "
                f"{1 / MAX_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -MAX_PENALTY <= value <= MAX_PENALTY:
                words = name.replace("_", " ")
                raise InputError(f"{words} is {value}; allowed: -{MAX_PENALTY} to {MAX_PENALTY} (0 is off)")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min-p is {self.min_p}; allowed: 0 (off) to 1")
        for token, bias in self.logit_bias.items():
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise InputError(f"logit bias of token {token} is {bias}; allowed: -{MAX_BIAS} to {MAX_BIAS}")
        if self.allowed_ids is not None and not self.allowed_ids - self.banned_ids:
            raise InputError("allowed and banned ids leave no token; allow at least one that is not banned")

    def check_vocabulary(self, width: int) -> None:
        """Refuse ids that the model does not have, and bans of all that it has.

        Raises:
            InputError: naming the first such id.
        """
        named = {"logit bias": self.logit_bias, "allowed ids": self.allowed_ids or (), "banned ids": self.banned_ids}
        for name, ids in named.items():
            for token in ids:
                if not 0 <= token < width:
                    raise InputError(f"{name} name token {token}; allowed: 0 to {width - 1}")
        if len(self.banned_ids) == width:
            raise InputError(f"banned ids name all {width} tokens of the model; leave at least one")


NO_RULES = LogitsRules()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, and its place: 0 for the likeliest; equal values share the place of the first."""

    token_id: int
    logprob: float
    place: int
