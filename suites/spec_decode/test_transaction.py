"""Reserve K+1, commit k: at every offset of a block, with slots used again, and where a request ends inside a block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from engine.llm import LLM
from engine.request import SamplingParams
from engine.run import Round
from engine.state.blocks import NULL_BLOCK, BlockPool, BlockPoolExhausted
from engine.state.sequence import SequenceState
from engine.state.slots import NO_SLOT, RecurrentSlots
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.texts import COPIES, asked

pytestmark = pytest.mark.group("transaction")

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
K = 7


def decoding(pool: BlockPool, length: int, slots: BlockPool | None = None) -> SequenceState:
    """A sequence of ``length`` computed tokens and an anchor."""
    sequence = SequenceState(range(length), pool, recurrent=RecurrentSlots(slots) if slots is not None else None)
    sequence.reserve(length, all_stay=True)
    sequence.commit(length, [99])
    return sequence


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 7, 8, 9, 16])
def test_a_round_has_its_k_plus_1_rows_at_every_offset(block_size: int) -> None:
    """The last mask lies in a block of the sequence itself: never in block 0, never in a neighbour's."""
    pool = BlockPool(200, block_size)
    for length in range(1, 3 * block_size + 2):
        neighbour, sequence = decoding(pool, 5), decoding(pool, length)
        theirs = set(neighbour.block_table)
        free = pool.num_free
        rows = sequence.reserve(K + 1)
        assert rows.count == K + 1
        assert [slot % block_size for slot in rows.slot_mapping] == [
            (length + row) % block_size for row in range(K + 1)
        ]
        blocks = {slot // block_size for slot in rows.slot_mapping}
        assert blocks <= set(sequence.block_table)
        assert not blocks & (theirs | {NULL_BLOCK})
        assert len(set(rows.slot_mapping)) == K + 1
        assert free - pool.num_free == -(-(length + K + 1) // block_size) - -(-length // block_size)
        neighbour.release()
        sequence.release()
        assert pool.num_free == pool.num_blocks - 1


@pytest.mark.parametrize("accepted", range(K + 1))
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_what_is_not_committed_goes_back(block_size: int, accepted: int) -> None:
    """Blocks and states after the accepted rows are free again at once; the state that is kept is the last row's."""
    pool, slots = BlockPool(100, block_size), BlockPool(20, 1)
    sequence = decoding(pool, 6, slots)
    rows = sequence.reserve(K + 1)
    assert rows.states is not None
    before = sequence.recurrent.current if sequence.recurrent else NO_SLOT
    assert rows.states.read == before
    assert len(set(rows.states.write) | {before}) == K + 2
    sequence.commit(1 + accepted, range(accepted + 1))
    assert sequence.num_computed == 7 + accepted == len(sequence.token_ids) - 1
    assert len(sequence.block_table) == pool.blocks_for(sequence.num_computed)
    assert sequence.recurrent is not None
    assert sequence.recurrent.current == rows.states.write[accepted]
    assert slots.num_free == 20 - 1 - 1
    sequence.release()
    assert (pool.num_free, slots.num_free) == (99, 19)


def test_a_transaction_is_closed_once() -> None:
    sequence = decoding(BlockPool(20, 4), 3)
    sequence.reserve(2)
    with pytest.raises(RuntimeError, match="2 rows are reserved already"):
        sequence.reserve(2)
    with pytest.raises(ValueError, match="3 rows to commit; allowed: 0 to the 2"):
        sequence.commit(3, [1, 2, 3])
    with pytest.raises(ValueError, match="rows would be committed for"):
        sequence.commit(2, [])
    sequence.commit(2, [1])
    with pytest.raises(RuntimeError, match="nothing is reserved"):
        sequence.commit(1, [1])


def test_a_pool_that_cannot_serve_leaves_everything_as_it_was() -> None:
    pool, slots = BlockPool(20, 4), BlockPool(4, 1)
    sequence = decoding(pool, 6, slots)
    free, table = pool.num_free, list(sequence.block_table)
    with pytest.raises(BlockPoolExhausted):
        sequence.reserve(K + 1)
    assert (pool.num_free, sequence.block_table) == (free, table)
    assert sequence.reserve(2).count == 2


ENGINES: dict[str, dict[str, Any]] = {
    "lookup": {"draft": "lookup", "lookup_min": 1},
    "dflash2": {"draft": "dflash2"},
    "dflash2+lookup": {"draft": "dflash2+lookup", "fusion_weak": 1, "fusion_strong": 2, "fusion_tail": 1},
}


def engine(name: str, engine_of: EngineOf, hybrid: Path, wide_draft: Path, **settings: Any) -> LLM:
    own = ENGINES[name] if name == "lookup" else {**ENGINES[name], "draft_model": wide_draft}
    return engine_of(hybrid, draft_tokens=K, **own, **settings)


def hot(count: int, seed: int = 1, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=100.0, seed=seed, **{"stop_token_ids": (), **more})


def idle(llm: LLM) -> bool:
    """Whether every block and state has gone back."""
    states = llm.pools.states
    return llm.pool.num_free == llm.pool.num_blocks - 1 and (states is None or states.num_free == states.num_blocks - 1)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("count", range(1, 10))
def test_a_limit_inside_a_block_ends_there(
    count: int, name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    """Exactly ``count`` tokens, whatever a round could have emitted; they are the first of the longer reply."""
    llm = engine(name, engine_of, hybrid, wide_draft)
    result = llm.generate(PROMPT, hot(count))
    assert len(result.token_ids) == count
    assert result.finish_reason == "length"
    assert sum(result.emitted) == count - 1
    assert idle(llm)
    assert (
        result.token_ids
        == llm.generate(PROMPT, SamplingParams(max_tokens=1, temperature=100.0, seed=1)).token_ids[:1]
        + result.token_ids[1:]
    )


def assert_stops_inside_a_block(llm: LLM, prompt: list[int], params: SamplingParams) -> None:
    """Take a token that a round emits before its last one, and ask for a stop there."""
    whole = llm.generate(prompt, params)
    starts = [sum(whole.emitted[:index]) + 1 for index in range(whole.rounds)]
    inside = [
        start + offset
        for start, emitted in zip(starts, whole.emitted, strict=True)
        for offset in range(emitted - 1)
        if whole.token_ids.index(whole.token_ids[start + offset]) == start + offset
    ]
    assert inside, "no round emitted two tokens of which the first is new: the case has no power"
    end = inside[-1]
    result = llm.generate(prompt, replace(params, stop_token_ids=(whole.token_ids[end],)))
    assert result.finish_reason == "stop"
    assert result.token_ids == whole.token_ids[: end + 1]
    # Accepted drafts after the stop became no text.
    assert sum(count * rounds for count, rounds in enumerate(result.acceptance_histogram)) < len(result.token_ids)
    assert idle(llm)


@pytest.mark.parametrize("name", ["dflash2", "dflash2+lookup"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stop_token_inside_a_block_ends_there(
    seed: int, name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    assert_stops_inside_a_block(engine(name, engine_of, hybrid, wide_draft), PROMPT, hot(60, seed))


@pytest.mark.parametrize("name", ENGINES)
def test_a_stop_token_inside_an_accepted_block_ends_there(
    name: str, quasar: Path, quasar_draft: Path, engine_of: EngineOf
) -> None:
    """The trained pair over a copy: blocks of which most is accepted."""
    llm = engine(name, engine_of, quasar, quasar_draft, max_model_len=160)
    assert_stops_inside_a_block(llm, asked(COPIES[0]), SamplingParams(max_tokens=32, seed=1, stop_token_ids=()))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("length", [24, 25, 28, 30, 32])
def test_the_context_ends_inside_a_block(
    length: int, name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    """``max_model_len`` caps the reply; no row is asked for after it that the buffers do not have."""
    llm = engine(name, engine_of, hybrid, wide_draft, max_model_len=length, max_sequences=2)
    results = llm.generate_batch([PROMPT, PROMPT[:9]], [hot(100, 1), hot(100, 2)])
    assert [len(result.token_ids) for result in results] == [length - len(PROMPT), length - 9]
    assert all(result.finish_reason == "length" for result in results)
    assert idle(llm)


@pytest.mark.parametrize("name", ENGINES)
def test_slots_are_used_again(name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf) -> None:
    """A pool that holds one request at a time: the second runs in the first one's blocks and states."""
    tight = engine(name, engine_of, hybrid, wide_draft, kv_cache_tokens=64, max_sequences=1, block_size=8)
    roomy = engine(name, engine_of, hybrid, wide_draft)
    blocks: list[set[int]] = []

    class Watch:
        def round(self, seen: Round) -> None:
            if seen.run.sequence.num_emitted == len(seen.committed.token_ids):
                blocks.append(set())
            blocks[-1] |= set(seen.run.sequence.block_table)

    tight.observer = Watch()
    try:
        results = tight.generate_batch([PROMPT, PROMPT[:5], [70, 71, 72] * 4], [hot(20, seed) for seed in range(3)])
    finally:
        tight.observer = None
    assert blocks[0] & blocks[1]
    for prompt, seed, result in zip([PROMPT, PROMPT[:5], [70, 71, 72] * 4], range(3), results, strict=True):
        assert result.token_ids == roomy.generate(prompt, hot(20, seed)).token_ids
    assert idle(tight)


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_that_shrinks_keeps_its_requests_apart(
    name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    """Four requests that end one after another: rows of those that left are nobody's any more."""
    llm = engine(name, engine_of, hybrid, wide_draft, max_sequences=4)
    prompts = [PROMPT, [70, 71, 72] * 4, [8] * 9, PROMPT[:13]]
    params = [hot(count, seed) for seed, count in enumerate((36, 6, 14, 24))]
    together = llm.generate_batch(prompts, params)
    for prompt, one, result in zip(prompts, params, together, strict=True):
        assert result.token_ids == llm.generate(prompt, one).token_ids
    assert idle(llm)


@pytest.mark.parametrize("name", ENGINES)
def test_crowding_starts_requests_again_without_losing_a_token(
    name: str, hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    tight = engine(name, engine_of, hybrid, wide_draft, kv_cache_tokens=88, block_size=8, max_sequences=3)
    prompts = [PROMPT, [70, 71, 72] * 4, PROMPT[:13]]
    params = [hot(30, seed) for seed in range(3)]
    crowded = tight.generate_batch(prompts, params)
    for prompt, one, result in zip(prompts, params, crowded, strict=True):
        assert result.token_ids == tight.generate(prompt, one).token_ids
    assert idle(tight)


def test_a_request_longer_than_the_pool_is_refused_and_the_others_go_on(
    hybrid: Path, wide_draft: Path, engine_of: EngineOf
) -> None:
    llm = engine("dflash2", engine_of, hybrid, wide_draft, kv_cache_tokens=64, max_sequences=1, block_size=8)
    with pytest.raises(InputError, match=r"the request needs \d+ KV slots .* ask for fewer tokens or raise"):
        llm.generate(PROMPT, hot(100))
    assert len(llm.generate(PROMPT, hot(10)).token_ids) == 10
