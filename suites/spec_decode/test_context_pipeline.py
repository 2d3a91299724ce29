"""The context pipeline: computed ahead of acceptance or after it, every bit that can be observed is the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig, read_environment
from engine.errors import InputError
from engine.llm import LLM
from engine.model.bundled import quasar_tiny_draft_path, quasar_tiny_path
from engine.request import SamplingParams
from engine.steps.context import ADMITTED, RoundShape, pipeline_refusal
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf
from suites.spec_decode.tape import CANARY, Tape, assert_same_tape, drafting, recorded
from suites.spec_decode.texts import COPIES, QUESTIONS, asked, drawn, plain

pytestmark = pytest.mark.group("context pipeline")

K = 7
PROMPT = asked(COPIES[2])
# One of another kind, and one that begins like the first.
LONG = asked(QUESTIONS[1])  # the answer takes many rounds
OTHERS = [asked(QUESTIONS[2]), [*PROMPT[:36], *plain(" is old.")]]
LEAST_BOUNDARIES = 10


@dataclass(frozen=True)
class Scenario:
    """Requests that run one call after another, each call a batch; and what the engine is set up with."""

    calls: Sequence[Sequence[tuple[list[int], SamplingParams]]]
    settings: dict[str, Any]
    admitted: bool = True


SCENARIOS = {
    "one-request": Scenario([[(asked(COPIES[0]), drawn(41, 2))], [(OTHERS[0], drawn(24, 2))]], {}),
    "greedy": Scenario([[(PROMPT, SamplingParams(max_tokens=14, seed=1))]], {}),
    "batch-that-shrinks": Scenario(
        [[(LONG, drawn(40, 1)), (OTHERS[0], drawn(8, 2)), (OTHERS[1], drawn(16, 3))]], {"max_sequences": 3}
    ),
    "slots-used-again": Scenario([[(OTHERS[0], drawn(12, 4))], [(PROMPT, drawn(20, 5))]], {"kv_cache_tokens": 96}),
    "known-beginning": Scenario(
        [[(PROMPT, drawn(10, 6))], [(OTHERS[1], drawn(16, 7))]], {"prefix_reuse": True, "block_size": 4}
    ),
    "prefill-beside-rounds": Scenario(
        [[(LONG, drawn(40, 8)), ([*PROMPT, *OTHERS[0]], drawn(8, 9))]], {"prefill_chunk": 20}
    ),
    "mixed-widths": Scenario([[(PROMPT, drawn(16, 1)), (OTHERS[0], drawn(16, 2, draft_tokens=3))]], {}, admitted=False),
    "with-lookup": Scenario(
        [[(PROMPT, drawn(24, 3))]],
        {"draft": "dflash2+lookup", "fusion_weak": 2, "fusion_strong": 4, "fusion_agree": 1, "fusion_tail": 2},
    ),
    "sparse": Scenario([[(PROMPT, drawn(24, 2))]], {"rejection": "sparse"}),
}


@functools.cache
def run(name: str, pipeline: bool) -> tuple[LLM, Tape]:
    """The trained pair in one scenario; looked at by several cases, run once."""
    scenario = SCENARIOS[name]
    settings = {"draft": "dflash2", "draft_tokens": K, "kv_cache_tokens": 256, "max_sequences": 2, **scenario.settings}
    llm = LLM(
        EngineConfig(
            model=quasar_tiny_path(),
            draft_model=quasar_tiny_draft_path(),
            context_pipeline=pipeline,
            threads=2,
            max_model_len=160,
            **settings,
        )
    )
    with pytest.MonkeyPatch.context() as patch, recorded(llm, patch) as tape:
        for call in scenario.calls:
            llm.generate_batch([prompt for prompt, _ in call], [params for _, params in call])
    return llm, tape


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.usefixtures("native_library")
def test_on_equals_off(name: str, record: Record) -> None:
    """Target states, fc outputs, draft inputs, candidates, lattice, laws, counts, pages, numbers asked for."""
    (off, quiet), (on, ahead) = (run(name, flag) for flag in (False, True))
    entries = assert_same_tape(quiet, ahead)
    assert off.context.rounds[ADMITTED] == 0
    ahead_rounds = on.context.rounds[ADMITTED]
    assert (ahead_rounds > 0) == SCENARIOS[name].admitted, f"rounds by what became of them: {dict(on.context.rounds)}"
    record.metric(f"{name}: rounds ahead", ahead_rounds, "round")
    record.metric(f"{name}: tensors bitwise equal", entries, "tensor")


@pytest.mark.usefixtures("native_library")
def test_the_boundaries_cover_partial_and_full_acceptance(record: Record) -> None:
    """At least ten real boundaries of the first scenario ran ahead, among them no, some and all drafts accepted."""
    on, tape = run("one-request", True)
    accepted = {len(one.acceptance.accepted) for one in tape.rounds if len(one.proposal.token_ids) == K}
    assert on.context.rounds[ADMITTED] >= LEAST_BOUNDARIES
    assert {0, K} < accepted
    assert len(accepted) >= 5
    record.metric("boundaries", on.context.rounds[ADMITTED], "round")


@pytest.mark.usefixtures("native_library")
def test_pages_of_nobody_keep_their_canary() -> None:
    """After every step: block 0, blocks that were never handed out, and of the draft every row that was rejected."""
    _, tape = run("one-request", True)
    used = {block for what, table in tape.entries if what == "block table" for block in table.tolist()}
    # A round reserves up to K+1 rows after the table that is recorded after its commit: one block more.
    reach = set(range(1, max(used) + 2))
    for what in ("KV pages", "draft KV pages"):
        seen = [pages for name, pages in tape.entries if name == what]
        assert len(seen) > LEAST_BOUNDARIES, f"{what} are not on the tape"
        for pages in seen:
            untouched = [block for block in range(pages.shape[1]) if block not in reach]
            assert 0 in untouched
            assert (pages[:, untouched] == CANARY).all()


@pytest.mark.parametrize(
    ("shape", "refusal"),
    [
        (RoundShape((8,), 0), None),
        (RoundShape((8, 8, 8), 0), None),
        (RoundShape((8,), 1), "a sequence prefills"),
        (RoundShape((8, 8), 2), "a sequence prefills"),
        (RoundShape((8, 7), 0), "rows of the sequences differ from K+1"),
        (RoundShape((1,), 0), "rows of the sequences differ from K+1"),
        (RoundShape((9, 9), 0), "rows of the sequences differ from K+1"),
    ],
)
def test_admission_takes_uniform_rounds_alone(shape: RoundShape, refusal: str | None) -> None:
    assert pipeline_refusal(shape, 8) == refusal


@pytest.mark.parametrize("order", ["never computed", "another batch", "twice"])
def test_a_stale_batch_is_never_stored(order: str, quasar: Path, quasar_draft: Path, engine_of: EngineOf) -> None:
    """What is prepared belongs to one batch, by identity, and is used once."""
    llm = engine_of(quasar, draft="dflash2", draft_model=quasar_draft, draft_tokens=K, max_model_len=160)
    draft = drafting(llm)
    draft._computed = None
    llm.generate(PROMPT, drawn(2, 1))
    batch = llm.runner.last_batch
    compute, store = partial(draft.compute_context, batch), partial(draft.store_context, batch, [0])
    orders: dict[str, list[Callable[[], None]]] = {
        "never computed": [store],
        "another batch": [compute, partial(draft.store_context, list(batch), [0])],
        "twice": [compute, store, store],
    }
    *before, last = orders[order]
    for action in before:
        action()
    with pytest.raises(RuntimeError, match=r"the context of (none|another one) is computed, not of this batch"):
        last()
    draft._computed = None


@pytest.mark.parametrize("field", ["fp32_logits", "context_pipeline", "context_kv_graph"])
def test_the_flags_have_the_seeds_names_and_are_off(field: str) -> None:
    variable = f"VLLM_SM70_DFLASH2_{field.upper()}"
    assert not getattr(read_environment({}), field)
    assert not getattr(read_environment({variable: "0"}), field)
    assert getattr(read_environment({variable: "1"}), field)
    with pytest.raises(InputError, match=f"{variable} is 'yes'; allowed: 0, 1"):
        read_environment({variable: "yes"})


def test_the_pipeline_is_refused_where_nothing_can_run_ahead() -> None:
    with pytest.raises(InputError, match=r"\(VLLM_SM70_DFLASH2_CONTEXT_PIPELINE\) with draft 'lookup'; allowed"):
        EngineConfig(draft="lookup", context_pipeline=True)


@pytest.mark.usefixtures("native_library")
def test_features_do_not_depend_on_what_is_accepted() -> None:
    """The fc outputs of a round's rows cover the rejected ones too, and none of their keys reaches a page."""
    llm, tape = run("one-request", True)
    names = [what for what, _ in tape.entries]
    features = [index for index, what in enumerate(names) if what == "fc outputs"]
    rounds = [index for index in features if len(tape.entries[index][1]) == K + 1]
    assert len(rounds) >= LEAST_BOUNDARIES
    kept = [int(tape.entries[index + 3][1][0]) for index in rounds]
    assert min(kept) < K + 1
    for index, count in zip(rounds, kept, strict=True):
        keys = tape.entries[index + 1][1]
        pages = next(pages for what, pages in tape.entries[index:] if what == "draft KV pages")
        stored = pages[:, :, 0].reshape(pages.shape[0], -1, *pages.shape[-2:])
        for row in range(count, K + 1):
            assert not (stored[0] == keys[row, 0]).all(axis=(1, 2)).any(), f"rejected row {row} is in a page"
        for row in range(count):
            assert np.equal(stored[0], keys[row, 0]).all(axis=(1, 2)).sum() == 1
    assert llm.pool.num_free == llm.pool.num_blocks - 1
