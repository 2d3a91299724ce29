"""State replay: `commit k and continue` against `replay the k rows from scratch`, layer by layer, bit for bit.

One sequence runs rounds of K drafts of which some stay; another one runs the tokens that stayed, one row a forward.
Whatever a rejected row left behind shows as the first tensor in which the two differ.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.diagnostics.snapshot import Difference, first_difference, snapshot
from engine.errors import InputError
from engine.loading import LoadedModel
from engine.model.runner import SequenceRows
from engine.state.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class ReplayRound:
    """One round: the drafts, how many of them stay, and the token after those, which is the next anchor."""

    drafts: tuple[int, ...]
    accepted: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= len(self.drafts):
            raise ValueError(f"{self.accepted} of {len(self.drafts)} drafts accepted; allowed: 0 to all of them")

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens that become history."""
        return (*self.drafts[: self.accepted], self.last)


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What was compared, and the first difference: its round (from 0) and where it is; None where all is equal."""

    rounds: int
    tensors: int
    accepted: tuple[int, ...]
    failed_round: int | None
    difference: Difference | None

    def __post_init__(self) -> None:
        if (self.failed_round is None) != (self.difference is None):
            raise ValueError(f"round {self.failed_round} with difference {self.difference}; allowed: both or neither")

    @property
    def equal(self) -> bool:
        """Whether every tensor of every round was equal."""
        return self.difference is None


def random_rounds(seed: int, vocab: int, rounds: int, drafts: int) -> list[ReplayRound]:
    """Rounds with random tokens and random accepted counts; every count comes up before any comes again."""
    rng = random.Random(seed)
    counts: list[int] = []
    while len(counts) < rounds:
        counts += rng.sample(range(drafts + 1), drafts + 1)
    return [
        ReplayRound(tuple(rng.randrange(vocab) for _ in range(drafts)), accepted, rng.randrange(vocab))
        for accepted in counts[:rounds]
    ]


def replay(model: LoadedModel, prompt: Sequence[int], first: int, rounds: Sequence[ReplayRound]) -> ReplayReport:
    """Run ``rounds`` after ``prompt`` and the anchor ``first``, both ways, comparing after each round.

    Compared are every layer's keys, values and states, and the logits after the last row that stayed. Raises
    ``InputError`` when the rounds do not fit into the cache.
    """
    widest = max((len(one.drafts) + 1 for one in rounds), default=1)
    needed = len(prompt) + 1 + sum(len(one.emitted) for one in rounds) + widest
    if 2 * (needed + model.pool.block_size) > model.pool.capacity_tokens or widest > model.runner.max_logit_rows:
        raise InputError(
            f"two sequences of {needed} tokens and rounds of {widest} rows do not fit into a cache of "
            f"{model.pool.capacity_tokens} slots and {model.runner.max_logit_rows} logit rows; ask for fewer rounds, "
            "fewer drafts or more kv-cache-tokens"
        )
    speculated, replayed = model.pools.sequence(prompt), model.pools.sequence(prompt)
    try:
        for sequence in (speculated, replayed):
            _prefill(model, sequence, first)
        return _compare(model, speculated, replayed, rounds)
    finally:
        speculated.release()
        replayed.release()


def _compare(
    model: LoadedModel, speculated: SequenceState, replayed: SequenceState, rounds: Sequence[ReplayRound]
) -> ReplayReport:
    tensors, counts = 0, tuple(one.accepted for one in rounds)
    for index, one in enumerate(rounds):
        expected = _row_by_row(model, replayed, one.emitted)
        rows = 1 + one.accepted
        got = _forward(model, speculated, one.drafts, keep=rows, emitted=one.emitted)[one.accepted]
        ours = {**snapshot(model, speculated), "logits": got}
        theirs = {**snapshot(model, replayed), "logits": expected}
        tensors += len(ours)
        difference = first_difference(ours, theirs)
        if difference is not None:
            return ReplayReport(index + 1, tensors, counts, index, difference)
    return ReplayReport(len(rounds), tensors, counts, None, None)


def _prefill(model: LoadedModel, sequence: SequenceState, first: int) -> None:
    """The prompt in chunks, then ``first`` as the anchor."""
    while sequence.num_to_prefill:
        count = min(sequence.num_to_prefill, model.runner.max_rows)
        reservation = sequence.reserve(count, all_stay=True)
        tokens = sequence.token_ids[reservation.start : reservation.start + count]
        model.runner.forward([SequenceRows(tokens, reservation, sequence.block_table, num_logits=0)], prefill=True)
        sequence.commit(count, [first] if not sequence.num_to_prefill - count else ())


def _row_by_row(model: LoadedModel, sequence: SequenceState, emitted: Sequence[int]) -> torch.Tensor:
    """Plain decode of tokens that are known; the logits before the last one."""
    for token in emitted:
        logits = _forward(model, sequence, (), keep=1, emitted=(token,))
    return logits[0]


def _forward(
    model: LoadedModel, sequence: SequenceState, drafts: Sequence[int], *, keep: int, emitted: Sequence[int]
) -> torch.Tensor:
    """One round: a copy of the logits of every row; ``keep`` rows are committed."""
    tokens = (sequence.token_ids[-1], *drafts)
    reservation = sequence.reserve(len(tokens))
    rows = SequenceRows(tokens, reservation, sequence.block_table, num_logits=len(tokens))
    logits = model.runner.forward([rows]).clone()
    sequence.commit(keep, emitted)
    return logits
