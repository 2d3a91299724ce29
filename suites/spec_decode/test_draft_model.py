"""The DFlash2 draft of an engine at work against fp64: from the text alone to hidden rows, lattice, laws and tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.draft_runner import DraftBlock
from engine.model.selector import Lattice, best_ids
from engine.request import SamplingParams
from engine.sampling.random import Purpose, random_bits, unit_interval
from engine.state.candidates import CandidateCache
from engine.steps import lattice
from engine.steps.draft_block import BlockDrafter
from engine.steps.records import PointLaw, Proposal
from suites.checkpoints.dflash2 import draft_config, random_draft, write_draft
from suites.checkpoints.hybrid import CONFIG, VOCAB, random_tensors
from suites.oracles import hybrid as hybrid_oracle
from suites.oracles import spec_dflash2 as oracle
from suites.oracles.arrays import F64
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.tape import Tape, drafting, recorded

pytestmark = pytest.mark.group("draft model")

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
# float32 products of up to 96 terms, each off by 96 * 2**-24 of the largest value at most, through the 8 sublayers of
# the target, the 4 of the draft and the head; the norms between them keep a row's size, so the errors add up.
RELATIVE = 13 * 96 * 2.0**-24

TARGET = random_tensors()
EMBEDDING, HEAD = TARGET["model.embed_tokens.weight"], TARGET["lm_head.weight"]

DRAFTS: dict[str, dict[str, Any]] = {
    "as-published": {},
    "block-of-4": {"block_size": 4},
    "block-of-6": {"block_size": 6},
    "three-taps-of-the-convolution": {"conv_kernel_size": 3},
    "one-tap": {"conv_kernel_size": 1},
    "one-group": {"conv_group_size": 48},
    "tap-of-the-first-layer": {"target_layer_ids": [0]},
    "taps-of-every-layer": {"target_layer_ids": [0, 1, 2, 3]},
    "scaled-and-capped": {
        "input_embedding_scale": 1.7,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 3.0,
    },
    "four-candidates": {"selector_top_k": 4},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "narrow-window": {"sliding_window": 3},
    "no-window": {"layer_types": ["full_attention", "full_attention"]},
    "interleaved-rope": {"rope_is_neox_style": False},
    "theta-of-its-own": {"rope_theta": 123.0},
}


def config_of(name: str) -> dict[str, Any]:
    return {**draft_config(CONFIG, **DRAFTS.get(name, {})), **CONFIGS.get(name, {})}


@dataclass(frozen=True, slots=True, eq=False)
class OneRound:
    """What the engine did in one drafted round, and the text that the round followed."""

    text: list[int]  # up to the anchor
    hidden: F64
    logits: F64
    candidates: np.ndarray
    unary: F64
    scores: F64
    tokens: tuple[int, ...]
    laws: list[dict[int, float]]


def rounds_of(tape: Tape) -> list[OneRound]:
    """The tape of one request, round by round."""
    found: list[OneRound] = []
    text = list(tape.rounds[0].run.request.prompt_token_ids) + list(tape.rounds[0].committed.token_ids)
    named: dict[str, list[np.ndarray]] = {}
    for what, array in tape.entries:
        named.setdefault(what, []).append(array)
    drafted = [one for one in tape.rounds[1:] if one.proposal.token_ids]
    for index, one in enumerate(tape.rounds[1:]):
        if not one.proposal.token_ids:
            break
        found.append(
            OneRound(
                text=list(text),
                hidden=named["draft hidden rows"][index].astype(np.float64),
                logits=named["draft logits"][index].astype(np.float64),
                candidates=named["candidates"][index][0],
                unary=named["unary scores"][index][0].astype(np.float64),
                scores=named["lattice"][index][0].astype(np.float64),
                tokens=one.proposal.token_ids,
                laws=[
                    dict(zip(law.token_ids.tolist(), law.probs.tolist(), strict=True))
                    for law in one.proposal.draft_laws
                ],
            )
        )
        text += one.committed.token_ids
    assert len(found) == len(drafted) > 0, "no round drafted anything: there is nothing to look at"
    return found


def tapped(config: dict[str, Any], text: Sequence[int], shift: int = 0) -> F64:
    """What the target's layers say of ``text``, side by side; ``shift`` moves every tap to another layer."""
    leaving = hybrid_oracle.residuals(CONFIG, TARGET, text)
    return np.concatenate([leaving[layer + shift] for layer in config["dflash_config"]["target_layer_ids"]], axis=1)


def expected_of(config: dict[str, Any], tensors: dict[str, F64], one: OneRound, shift: int = 0) -> oracle.Drafted:
    *context, anchor = one.text
    return oracle.draft(config, tensors, EMBEDDING, HEAD, tapped(config, context, shift), anchor)


def error(actual: F64, expected: F64) -> float:
    """Largest difference, as a share of the largest value."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def run(
    model: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    temperature: float = 1.0,
    max_tokens: int = 6,
    prompt: Sequence[int] = PROMPT,
    **settings: Any,
) -> tuple[LLM, list[OneRound]]:
    llm = LLM(EngineConfig(model=model, threads=2, **{"draft": "dflash2", "draft_model": folder, **settings}))
    with recorded(llm, monkeypatch) as tape:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=3, stop_token_ids=())
        llm.generate(prompt, params)
    return llm, rounds_of(tape)


@pytest.mark.parametrize("name", [*DRAFTS, *CONFIGS])
def test_a_draft_is_that_of_fp64(
    name: str, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """Taps, fc and norm, injected keys and values, the block, both convolutions, window, RoPE, head and selector."""
    config = config_of(name)
    tensors = random_draft(config, seed=1)
    drafts = config["dflash_config"]["block_size"] - 1
    _, rounds = run(hybrid, write_draft(tmp_path, tensors, config), monkeypatch, draft_tokens=drafts, max_tokens=5)
    worst = 0.0
    for one in rounds:
        expected = expected_of(config, tensors, one)
        worst = max(worst, error(one.hidden, expected.hidden), error(one.logits, expected.logits))
        # Ranks of logits that are nearer than the error may swap; scores are compared candidate by candidate.
        for slot, ids in enumerate(one.candidates):
            least = np.sort(expected.logits[slot])[-len(ids)]
            slack = 2 * RELATIVE * np.abs(expected.logits).max()
            assert expected.logits[slot, ids].min() >= least - slack, f"slot {slot} misses a candidate"
        same = oracle.select(config, tensors, expected.hidden, expected.logits, one.text[-1])
        if np.array_equal(same.candidates, one.candidates):
            worst = max(worst, error(one.unary, same.unary), error(one.scores, same.scores))
    assert worst <= RELATIVE, f"off by {worst:.2e} of the largest value, allowed {RELATIVE:.2e}"
    record.metric(f"{name}: largest error, share of the largest value", worst, "1", better="lower", exact=False)


def test_the_last_slot_of_the_lattice_is_written(
    hybrid: Path, wide_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K slots, each with scores of its own; an unrolled walk once lost the last store."""
    _, rounds = run(hybrid, wide_draft, monkeypatch, draft_tokens=7, max_tokens=20)
    whole = [one for one in rounds if len(one.tokens) == 7]
    assert whole, "no round drafted a whole block: the case has no power"
    for one in whole:
        assert len({one.scores[slot].tobytes() for slot in range(7)}) == 7
        assert (one.scores[6] != 0).all()
        assert one.tokens[6] in one.candidates[6]
        assert len(one.laws[6]) == 64


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_tap_that_is_off_by_one_would_show(
    shift: int, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the layer before or after gives another draft, far outside of the tolerance. Nothing crashes."""
    config = draft_config(CONFIG, target_layer_ids=[1, 2])
    tensors = random_draft(config, seed=1)
    _, rounds = run(hybrid, write_draft(tmp_path, tensors, config), monkeypatch, max_tokens=3)
    one = rounds[0]
    assert error(one.hidden, expected_of(config, tensors, one).hidden) <= RELATIVE
    assert error(one.hidden, expected_of(config, tensors, one, shift).hidden) > 1000 * RELATIVE


@pytest.mark.parametrize("temperature", [0.3, 1.0, 100.0])
def test_the_realised_rows_are_the_laws(
    temperature: float, hybrid: Path, wide_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each law is the softmax of the row of the token before it; weights are integers of 40 bits."""
    _, rounds = run(hybrid, wide_draft, monkeypatch, temperature=temperature, max_tokens=24)
    assert len(rounds) >= 3
    for one in rounds:
        drafted = oracle.Drafted(one.hidden, one.logits, one.candidates, one.unary, one.scores)
        for seen, expected in zip(one.laws, oracle.laws_along(drafted, one.tokens, temperature), strict=True):
            assert seen.keys() == expected.keys()
            # fp32 rounds the quotient of a score and the temperature once, the weight is within 2**-28 of itself.
            limit = 2 * (np.abs(one.scores).max() / temperature * 2.0**-24 + 2.0**-27)
            assert all(abs(seen[token] - expected[token]) <= limit for token in seen)


def test_greedy_takes_the_best_of_each_realised_row(
    hybrid: Path, draft_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rounds = run(hybrid, draft_model, monkeypatch, temperature=0.0, max_tokens=8)
    for one in rounds:
        row = 0
        for slot, token in enumerate(one.tokens):
            best = int(one.scores[slot, row].argmax())
            assert token == one.candidates[slot, best]
            row = best


def test_a_drafted_token_has_the_draft_number_of_its_own_position() -> None:
    """And no other purpose's: a number that also accepts or replaces the token would favour what it drew."""
    asked: list[tuple[int, Purpose]] = []

    class Asked:
        def bits(self, position: int, purpose: Purpose) -> int:
            asked.append((position, purpose))
            return random_bits(7, position, purpose)

        def uniform(self, position: int, purpose: Purpose) -> float:
            return unit_interval(self.bits(position, purpose))

    ids, masses = np.tile(np.arange(4), (3, 1)), np.ones((3, 4, 4), np.int64)
    walked = lattice.walk(ids, masses, 11, 3, Asked())
    assert isinstance(walked, Proposal)
    assert asked == [(position, Purpose.DRAFT) for position in (11, 12, 13)]
    expected = [int(unit_interval(random_bits(7, position, Purpose.DRAFT)) * 4) for position in (11, 12, 13)]
    assert list(walked.token_ids) == expected


def test_the_first_slot_has_the_anchor_in_front(
    hybrid: Path, draft_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of slot 0 are equal, those of the others are not."""
    _, rounds = run(hybrid, draft_model, monkeypatch)
    for one in rounds:
        assert (one.scores[0] == one.scores[0, 0]).all()
        assert not (one.scores[1] == one.scores[1, 0]).all()


@pytest.mark.parametrize("width", [3, 7, 8, 15, 31])
def test_a_wider_verification_does_not_widen_the_block(
    width: int, hybrid: Path, draft_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolution ends with the trained block of 8, however many rows a lookup adds after it."""
    config = draft_config(CONFIG)
    _, rounds = run(
        hybrid,
        draft_model,
        monkeypatch,
        draft="dflash2+lookup",
        draft_tokens=width,
        fusion_weak=1,
        fusion_strong=2,
        fusion_tail=1,
        max_tokens=40,
        temperature=0.0,
    )
    if width > 7:
        assert max(len(one.tokens) for one in rounds) > 7, "no tail was added: the case has no power"
    for one in rounds[:4]:
        assert one.hidden.shape[0] == 7
        assert error(one.hidden, expected_of(config, random_draft(config), one).hidden) <= RELATIVE


def test_neighbours_do_not_change_a_draft(hybrid: Path, draft_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request alone and between two others: the same lattices, bit for bit, at the same rounds."""
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=3, stop_token_ids=())
    prompts = [[70, 71, 72] * 5, PROMPT, [8] * 17]
    llm = LLM(EngineConfig(model=hybrid, draft="dflash2", draft_model=draft_model, threads=2, max_sequences=3))
    with recorded(llm, monkeypatch) as together:
        llm.generate_batch(prompts, params)
    with recorded(llm, monkeypatch) as alone:
        llm.generate(PROMPT, params)
    joined, own = ([array for what, array in tape.entries if what == "lattice"] for tape in (together, alone))
    for left, right in zip(own, joined, strict=False):
        assert (left[0] == right[1]).all()


def test_candidate_ties_go_to_the_lower_id() -> None:
    row = np.array([1, 3, 2, 3, 2, 2, -np.inf], np.float32)
    assert best_ids(row, 2).tolist() == [1, 3]
    assert best_ids(row, 4).tolist() == [1, 3, 2, 4]


def test_the_candidate_cache_holds_the_proposal_and_nothing_else(
    hybrid: Path, draft_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every draft: the rows that were proposed; a looked-up token's row has exactly one place, of mass 1."""
    llm = LLM(
        EngineConfig(
            model=hybrid,
            draft="dflash2+lookup",
            draft_model=draft_model,
            draft_tokens=10,
            fusion_weak=1,
            fusion_strong=2,
            fusion_tail=1,
            threads=2,
        )
    )
    drafter = llm._drafter
    assert isinstance(drafter, BlockDrafter)
    cache, original, kinds = drafter.cache, drafter._kept, set()

    def checked(slot: int, proposal: Any) -> Any:
        kept = original(slot, proposal)
        for step in range(cache.token_ids.shape[1]):
            places = cache.token_ids[slot, step] != -1
            law = kept.draft_laws[step] if step < len(kept.draft_laws) else None
            assert places.sum() == (0 if law is None else len(law.token_ids))
            assert (cache.probs[slot, step][~places] == 0).all()
            if law is not None:
                kinds.add(isinstance(law, PointLaw))
                assert cache.token_ids[slot, step][places].tolist() == law.token_ids.tolist()
                assert cache.probs[slot, step].sum() == pytest.approx(1, abs=1e-12)
        return kept

    monkeypatch.setattr(drafter, "_kept", checked)
    llm.generate([5, 6, 7, 8] * 5, SamplingParams(max_tokens=40, temperature=1.0, seed=1, stop_token_ids=()))
    assert kinds == {True, False}, "both kinds of rows must have been in the same places"


@pytest.mark.parametrize("rows", [(16, 1), (1, 16), (16, 4, 1)], ids=str)
def test_a_slot_is_erased_before_it_is_written(rows: tuple[int, ...]) -> None:
    """What a wider or a longer proposal left is no candidate of the next one."""
    cache = CandidateCache(2, 7, 16)
    for number, width in enumerate(rows):
        depth = 7 if number % 2 == 0 else 3
        ids = np.arange(width, dtype=np.int64) + 10 * number
        cache.write(1, [(ids, np.full(width, 1 / width))] * depth)
    finite = (cache.token_ids[1] != -1).sum(axis=1)
    assert finite.tolist() == [rows[-1]] * depth + [0] * (7 - depth)
    assert (cache.token_ids[0] == -1).all()
    assert [row[0].tolist() for row in cache.read(1)] == [ids.tolist()] * depth


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8])
def test_a_block_has_room_for_its_last_mask(
    block_size: int, hybrid: Path, draft_model: Path, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K+1 rows are reserved for a draft: anchor and K masks, at every offset of a block."""
    llm = engine_of(hybrid, draft="dflash2", draft_model=draft_model, block_size=block_size)
    draft = drafting(llm)
    original, seen = draft.draft, list[tuple[int, int, int]]()

    def watching(batch: Sequence[DraftBlock]) -> Lattice:
        seen.extend((one.reservation.count, len(one.block_table), one.reservation.start) for one in batch)
        return original(batch)

    monkeypatch.setattr(draft, "draft", watching)
    for length in range(1, 2 * block_size + 1):
        llm.generate(PROMPT[:length], SamplingParams(max_tokens=3, stop_token_ids=()))
    assert {start % block_size for _, _, start in seen} == set(range(block_size))
    for count, blocks, start in seen:
        assert count >= 8
        assert blocks * block_size >= start + 8


def test_the_oracle_itself_on_a_hand_worked_convolution() -> None:
    """Two rows, two channels in one group, two taps: out = (base0 + d0) x[i] + (base1 + d1) x[i - 1]."""
    tensors = {"c.base_kernel": np.array([[[1.0, 2.0], [10.0, 20.0]], [[0.0, 0.0], [0.0, 0.0]]])}
    # Rows of the projection: side 0 tap 0, side 0 tap 1, side 1 tap 0, side 1 tap 1.
    tensors["c.kernel_projection.weight"] = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    rows = np.array([[3.0, 5.0], [7.0, 11.0]])
    before, behind = oracle.convolutions({"conv_kernel_size": 2, "conv_group_size": 2}, tensors, "c", rows)
    first = [(1 + 3) * 3, (2 + 3) * 5]
    second = [(1 + 7) * 7 + (10 + 11) * 3, (2 + 7) * 11 + (20 + 11) * 5]
    assert before(rows).tolist() == [first, second]
    assert behind(rows).tolist() == [[0, 0], [0, 0]]


def test_the_oracles_rope_turns_by_hand() -> None:
    """At position 1 the first pair turns by one radian: (1, 0) becomes (cos 1, sin 1)."""
    config = {"head_dim": 4, "rope_theta": 100.0}
    heads = np.array([[[1.0, 0.0, 0.0, 0.0]]])
    assert oracle.turn(config, heads, np.array([1]))[0, 0] == pytest.approx([np.cos(1), 0, np.sin(1), 0])
    twisted = {**config, "rope_is_neox_style": False}
    assert oracle.turn(twisted, heads, np.array([1]))[0, 0] == pytest.approx([np.cos(1), np.sin(1), 0, 0])


def test_the_checkpoint_on_disk_is_the_one_described(draft_model: Path) -> None:
    config = json.loads((draft_model / "config.json").read_text())
    assert config["architectures"] == ["DFlash2DraftModel"]
    assert config["vocab_size"] == VOCAB
