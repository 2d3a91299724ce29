"""Acceptance of the trained pair: a draft that reads the wrong layers says nothing wrong, it is only believed less."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.llm import LLM
from engine.request import SamplingParams
from engine.result import GenerationResult
from engine.training import measure
from suites.recording import Record
from suites.spec_decode.texts import asked

pytestmark = pytest.mark.group("trained pair")

K = 7
PROMPTS = 16
TOKENS = 40
# A false alarm once in a thousand choices of the prompts.
ALPHA = 1e-3
# Emitted a round on the editing tasks of the blind set, greedy, and the lower end of its 95 % interval over those 24
# prompts (docs/quasar-tiny.md). Over fewer prompts the interval is wider by the square root of how many fewer.
BLIND, BLIND_LOW, BLIND_PROMPTS = 5.33, 4.76, 24
LEAST_EMITTED = BLIND - (BLIND - BLIND_LOW) * math.sqrt(BLIND_PROMPTS / PROMPTS)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Held-out editing tasks: where most is copied, a draft that knows the text is right for long."""
    return [asked(message) for message in measure.held_out_prompts() if "\n" in message][:PROMPTS]


def greedy(quasar: Path, draft: Path, prompts: list[list[int]]) -> list[GenerationResult]:
    llm = LLM(
        EngineConfig(
            model=quasar,
            draft="dflash2",
            draft_model=draft,
            draft_tokens=K,
            threads=2,
            max_sequences=len(prompts),
            max_model_len=256,
        )
    )
    return llm.generate_batch(prompts, SamplingParams(max_tokens=TOKENS))


def test_taps_one_layer_off_cost_rounds(
    quasar: Path, quasar_draft: Path, prompts: list[list[int]], tmp_path: Path, record: Record
) -> None:
    """The same replies token for token, in more rounds: paired by prompt, by an exact test of the sum's sign."""
    own = greedy(quasar, quasar_draft, prompts)
    shifted = greedy(quasar, measure.shifted_taps(tmp_path), prompts)
    assert [one.token_ids for one in own] == [other.token_ids for other in shifted]
    more = np.array([other.rounds - one.rounds for one, other in zip(own, shifted, strict=True)])
    share = sign_flip_share(more)
    emitted = emitted_a_round(own)
    assert share <= ALPHA, f"{more.sum()} rounds more over {len(more)} prompts, by chance with probability {share:.2g}"
    assert emitted >= LEAST_EMITTED, f"{emitted:.2f} emitted a round, {LEAST_EMITTED:.2f} are expected of this pair"
    assert emitted_a_round(shifted) < LEAST_EMITTED, "the floor would not tell a draft that reads the wrong layers"
    record.metric("emitted a round", round(emitted, 4), "token", better="higher")
    record.metric("rounds with every tap one layer off, over those as trained", 1 + _share(more, own), "1")


def emitted_a_round(results: list[GenerationResult]) -> float:
    """Tokens behind the first of each reply over rounds, as the blind set is counted."""
    return sum(len(one.token_ids) - 1 for one in results) / sum(one.rounds for one in results)


def _share(more: np.ndarray, own: list[GenerationResult]) -> float:
    return round(float(more.sum()) / sum(one.rounds for one in own), 4)


def sign_flip_share(differences: np.ndarray) -> float:
    """Share of all ways to choose the differences' signs whose sum is as large as theirs or larger, exactly.

    If neither side were better, each prompt's difference would be as likely to have the other sign.
    """
    sizes = np.abs(differences)
    ways = np.zeros(2 * int(sizes.sum()) + 1)
    middle = int(sizes.sum())
    ways[middle] = 1.0
    for size in sizes.tolist():
        ways = (np.roll(ways, size) + np.roll(ways, -size)) / 2
    return float(ways[middle + int(differences.sum()) :].sum())


def test_the_sign_flips_by_hand() -> None:
    """Of the eight ways to sign 1, 1 and 2, one comes to 4, three to 2 or more, all to -4 or more."""
    assert sign_flip_share(np.array([1, 1, 2])) == 1 / 8
    assert sign_flip_share(np.array([1, -1, 2])) == 3 / 8
    assert sign_flip_share(np.array([-1, -1, -2])) == 1
    assert sign_flip_share(np.array([0, 0])) == 1
