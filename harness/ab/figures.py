"""A repeat's figures as samples and records. Pure: the session judges by them, the run folder is written from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.ab.repeat import Repeat, tokens_sha256
from harness.model import Assume, Better, Pairing, Samples
from harness.records import AnyLine, CaseEnd, CaseStart, MetricLine, SamplesLine, TokensLine

SCHEMA = 1
ROUND, FIRST_TOKEN = "round", "time to first token"
QUANTITIES = (ROUND, FIRST_TOKEN)
CONTROL = "tokens"


def node(arm: str) -> str:
    """The id under which an arm stands in evidence."""
    return f"ab::{arm}"


def samples_of(repeats: Sequence[Repeat], quantity: str, pairing: Pairing | None = None) -> Samples:
    """One quantity over repeats of one arm on one side, tied to the tokens of the first."""
    first = repeats[0]
    of_rounds = quantity == ROUND
    return Samples(
        node=node(first.arm),
        name=quantity,
        values=tuple(repeat.round_ms if of_rounds else repeat.first_token_ms for repeat in repeats),
        unit="ms",
        better=Better.LOWER,
        control=CONTROL,
        token_sha256=first.sha256,
        rounds=tuple(tuple(repeat.rounds) for repeat in repeats) if of_rounds else (),
        unfit=tuple(dict.fromkeys(reason for repeat in repeats for reason in repeat.unfit)),
        pairing=pairing,
    )


def lines(arm: str, repeats: Sequence[Repeat], pairings: Mapping[str, Pairing | None], problem: str) -> list[AnyLine]:
    """The records of one arm of one side: its tokens, its times where nothing went wrong, and how it ended.

    ``pairings`` has every quantity that is stated, with ``None`` where the repeats had no partners.
    """
    found: list[AnyLine] = [CaseStart(schema=SCHEMA, node=node(arm), group=arm)]
    if repeats:
        found += _work(repeats[0])
    if repeats and not problem:
        found += [_samples_line(samples_of(repeats, name, pairing)) for name, pairing in pairings.items()]
    return [*found, _end(arm, problem)]


def _end(arm: str, problem: str) -> CaseEnd:
    return CaseEnd(
        schema=SCHEMA,
        node=node(arm),
        outcome="failed" if problem else "passed",
        phases={},
        seconds=None,
        reason=problem,
        reruns=0,
    )


def _work(repeat: Repeat) -> list[AnyLine]:
    """What was generated: the token control, and the rounds it came in as an exact number."""
    ids = [prompt.token_ids for prompt in repeat.prompts]
    emitted = repeat.emitted
    control = TokensLine(
        schema=SCHEMA,
        node=node(repeat.arm),
        name=CONTROL,
        sha256=repeat.sha256,
        prompt_sha256=tuple(tokens_sha256([one]) for one in ids),
        finish=tuple(prompt.finish for prompt in repeat.prompts),
        tokens=sum(map(len, ids)),
        rounds=len(emitted),
        acceptance_histogram=tuple(emitted.count(size) for size in range(max(emitted) + 1)),
    )
    rounds = MetricLine(
        schema=SCHEMA,
        node=node(repeat.arm),
        name="rounds",
        value=len(emitted),
        unit="round",
        better=Better.LOWER,
        assume=Assume.EXACT,
    )
    return [control, rounds]


def _samples_line(samples: Samples) -> SamplesLine:
    return SamplesLine(
        schema=SCHEMA,
        node=samples.node,
        name=samples.name,
        values=samples.values,
        unit=samples.unit,
        better=samples.better,
        control=samples.control,
        rounds=samples.rounds,
        unfit=samples.unfit,
        pairing=msgspec.UNSET if samples.pairing is None else samples.pairing,
    )
