"""Did two repeats do the same work, unwatched? Pure; the first thing that differs is said."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ab.repeat import Prompt, Repeat


@dataclass(frozen=True, slots=True)
class SameWork:
    """Why two repeats may not be compared.

    For other tokens: of which prompt, from which position on, both ids there, and what stood ``before`` them.
    """

    arm: str
    what: str
    reason: str
    prompt: str = ""
    position: int | None = None
    base_token: int | None = None
    head_token: int | None = None
    before: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.arm}, {self.what}: {self.reason}"


def other_work(one: Repeat, other: Repeat, what: str) -> SameWork | None:
    """The first reason against comparing the times of ``one`` and ``other``; ``None`` where there is none."""
    for repeat in (one, other):
        if repeat.unfit:
            return SameWork(one.arm, what, f"a worker is unfit for timing: {'; '.join(repeat.unfit)}")
    names = [[prompt.name for prompt in repeat.prompts] for repeat in (one, other)]
    if names[0] != names[1]:
        return SameWork(one.arm, what, f"other prompts: {', '.join(names[0])}, then {', '.join(names[1])}")
    for left, right in zip(one.prompts, other.prompts, strict=True):
        found = _other_prompt(one.arm, what, left, right)
        if found is not None:
            return found
    return None


def _other_prompt(arm: str, what: str, left: Prompt, right: Prompt) -> SameWork | None:
    for position, (one, other) in enumerate(zip(left.token_ids, right.token_ids, strict=False)):
        if one != other:
            reason = f"other tokens: prompt {left.name!r}, token {position}: {one}, then {other}"
            return SameWork(arm, what, reason, left.name, position, one, other, left.token_ids[:position])
    if len(left.token_ids) != len(right.token_ids):
        counts = f"{len(left.token_ids)} and {len(right.token_ids)} tokens"
        return SameWork(
            arm, what, f"other tokens: prompt {left.name!r}: {counts}, the same as far as both go", left.name
        )
    for prompt in (left, right):
        if prompt.finish != "stop":
            reason = f"prompt {prompt.name!r} ended by {prompt.finish!r}, not by itself: a length limit cut it"
            return SameWork(arm, what, reason, prompt.name)
    return None
