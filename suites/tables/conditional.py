"""The conditional lookup on a real round: what is emitted where a lookup was taken because the drafted token agreed.

The published frequencies are of two tokens with made-up laws. Here both laws are the trained pair's own, of the round
among the held-out prompts in which a rewritten law would do most harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.run import Round
from engine.sampling.random import Purpose
from engine.steps.draft import LookupSettings, Match, find_match
from engine.steps.fusion import FusionSettings, fuse
from engine.steps.laws import LogitsLaw
from engine.steps.records import PointLaw, Proposal, TokenLaw, Verification
from engine.steps.reject import reject
from engine.training import measure
from suites.spec_decode.seeded import SeededNumbers
from suites.tables.carried import Settings, drawn, engine, evenly
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table

WEAK, STRONG = 2, 12
FUSION = FusionSettings(weak=WEAK, strong=STRONG, agree=1)

Join = Callable[[Proposal], Proposal]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A round whose history has an earlier occurrence: the laws of its first token, and what is looked up there."""

    position: int
    match: Match
    target: TokenLaw
    drafted: TokenLaw

    @property
    def token(self) -> int:
        """The looked-up token."""
        return self.match.continuation[0]

    @property
    def exact(self) -> float:
        """The target's probability of it."""
        return self.target.probability(self.token)

    @property
    def rewritten(self) -> float:
        """Its probability where the token that chose the lookup is recorded as a point mass."""
        draft = self.drafted.probability(self.token)
        return self.exact - (min(self.exact, draft) - self.exact * draft)


@dataclass
class Places:
    """The rounds in which a weak match, and the model, may or may not say the same first token."""

    found: list[Place] = field(default_factory=list)

    def round(self, seen: Round) -> None:
        """See `RoundObserver`. The round is committed: its history lies before what it emitted."""
        if not seen.proposal.token_ids:
            return
        history = seen.run.sequence.token_ids[: -len(seen.committed.token_ids)]
        match = find_match(history, 1, LookupSettings(WEAK, STRONG))
        target, drafted = seen.verification.target_laws[0], seen.proposal.draft_laws[0]
        if match is None or match.length >= STRONG:
            return
        if isinstance(target, LogitsLaw) and isinstance(drafted, TokenLaw):
            law = TokenLaw(*target.support())
            self.found.append(Place(seen.verification.first_position, match, law, drafted))


def worst_place(settings: Settings) -> Place:
    """Where the rewritten law is furthest from the target's."""
    prompts = evenly(measure.held_out_prompts(), settings.prompts)
    llm = engine(settings, sequences=len(prompts))
    places = Places()
    llm.observer = places
    llm.generate_batch(
        [llm.chat_prompt(prompt) for prompt in prompts], [drawn(settings, seed) for seed in range(len(prompts))]
    )
    llm.observer = None
    if not places.found:
        raise RuntimeError(f"no round of {len(prompts)} prompts has an earlier occurrence; run more of them")
    return max(places.found, key=lambda place: place.exact - place.rewritten)


def frequencies(settings: Settings) -> Table:
    """Share of the seeds whose round emits the looked-up token first, where a rewritten law does most harm."""
    return table_of(worst_place(settings), settings.seeds)


def table_of(place: Place, seeds: int) -> Table:
    """The same of one round, through `fuse` and `reject`."""
    joins: dict[str, tuple[Join, float]] = {
        "by the history alone": (_by_history(place), place.exact),
        "by agreement, law rewritten (the defect)": (_rewritten(place), place.rewritten),
        "by agreement, law kept": (_by_agreement(place), place.exact),
    }
    seen = frequencies_of(place, [join for join, _ in joins.values()], seeds)
    known = published("precision")["conditional_lookup"]
    theirs = ("0.799110", f"{known['before']:.6f}", f"{known['after']:.6f}")
    rows = [
        (name, f"{expected:.6f}", f"{share:.6f}", f"{_sigmas(share, expected, seeds):+.2f}", other)
        for (name, (_, expected)), share, other in zip(joins.items(), seen, theirs, strict=True)
    ]
    draft = place.drafted.probability(place.token)
    return Table(
        "Conditional lookup: how often the looked-up token is emitted",
        ("lookup taken", "exact, here", f"over {seeds:,} seeds, here", "standard errors", PUBLISHED),
        tuple(rows),
        (
            f"Here: the round in which rewriting would do most harm, position {place.position}, a match of",
            f"{place.match.length}; the draft gives the looked-up token {draft:.3f}, the target {place.exact:.3f}.",
            f"Published: two tokens, {known['q_a']} and {known['p_a']}, {known['seeds']:,} seeds.",
        ),
    )


def frequencies_of(place: Place, joins: Sequence[Join], seeds: int) -> list[float]:
    """One share for each way of joining; the same drafted tokens and numbers in all of them."""
    verification = Verification(place.position, (place.target, place.target))
    joined = [
        {token: join(Proposal((token,), (place.drafted,))) for token in place.drafted.token_ids.tolist()}
        for join in joins
    ]
    counts = [0] * len(joins)
    for noise in SeededNumbers(range(seeds), place.position, 2):
        token = place.drafted.draw(noise.bits(place.position, Purpose.DRAFT))
        for index, proposals in enumerate(joined):
            counts[index] += reject(proposals[token], verification, noise).emitted[0] == place.token
    return [count / seeds for count in counts]


def _by_history(place: Place) -> Join:
    return lambda drafted: fuse(drafted, Match(STRONG, (place.token,)), FUSION)


def _by_agreement(place: Place) -> Join:
    return lambda drafted: fuse(drafted, Match(place.match.length, (place.token,)), FUSION)


def _rewritten(place: Place) -> Join:
    def join(drafted: Proposal) -> Proposal:
        fused = _by_agreement(place)(drafted)
        return Proposal(fused.token_ids, (PointLaw(place.token),)) if fused.token_ids == (place.token,) else fused

    return join


def _sigmas(share: float, expected: float, seeds: int) -> float:
    return (share - expected) / math.sqrt(expected * (1 - expected) / seeds)
