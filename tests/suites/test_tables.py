"""The published tables taken again: each is made at a size that a test can afford, and says what must hold of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.model.bundled import quasar_tiny_path
from engine.model.hybrid_config import read_hybrid_config
from suites.latency.figures import PromptRun
from suites.latency.repeats import Repeat
from suites.tables import boundaries, conditional, drafting, precision, rounds, shards, verifier
from suites.tables.__main__ import NAMES, main, tables
from suites.tables.carried import Settings, drawn, engine, held_out
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table

SMALL = Settings(threads=1, max_tokens=24, prompts=2, seeds=4000, repeats=1)
# The published bounds: a W4A16 product against the exact one, and what its misaligned scales did at least.
CLOSE, BROKEN = 5e-4, 0.1


def test_every_name_has_a_table_and_every_table_a_name() -> None:
    assert list(tables()) == list(NAMES)


def test_a_row_of_another_width_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="t: 1 cells under 2 columns"):
        Table("t", ("a", "b"), (("1",),), ())


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products: more threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_what_is_published_stands_in_cells_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    target, batches = held_out()
    monkeypatch.setattr(precision, "held_out", lambda: (target, batches[:1]))
    lines = list(precision.kv(SMALL).markdown())
    (theirs,) = [line for line in lines if PUBLISHED in line]
    assert "0.02902 | 0.05932" in theirs
    ours = [line for line in lines if "here" in line]
    assert ours
    assert not any(PUBLISHED in line for line in ours)


def test_the_loss_of_exact_weights_is_the_journals(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    entries = [
        {"phase": "target", "step": 20, "loss": 6.4},
        {"phase": "target", "held_out_loss": 1.6, "held_out_text_loss": 1.5},
        {"phase": "quantised", "held_out_loss": 1.6, "held_out_text_loss": 1.51},
        {"phase": "target", "held_out_text_loss_sharpened": 1.7},
    ]
    journal.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert precision.journalled(journal) == {"target": ("1.7000", "1.5000"), "quantised": ("", "1.5100")}


def test_misaligned_scales_show_at_tp_2_and_hide_at_tp_4() -> None:
    config = read_hybrid_config(quasar_tiny_path())
    weights, inputs = shards.gdn_weights(config), shards.gdn_inputs(8)
    for tp, hidden in ((2, False), (4, True)):
        admitted = shards.admitted_at(config, tp)
        for rank in range(tp):
            before, after = shards.errors(admitted, weights[0], shards.heads_of(config), rank, inputs[0])
            assert after < CLOSE
            assert (before == 0) if hidden else (before > BROKEN)


def test_the_ledger_of_a_few_rounds_misses_nothing() -> None:
    llm = engine(SMALL, rejection="sparse")
    seen, drafted = verifier.observed(llm, [llm.chat_prompt("What is water made of?")], [drawn(SMALL, 0)])
    report = seen.ledger.report()
    assert report.rounds == report.dense_decisions == seen.judged > 0
    assert not seen.wrong
    assert (report.required_candidate_misses, drafted.misses) == (0, 0)
    assert drafted.rows % 7 == 0
    assert report.sparse_rows > 0


def test_the_pipeline_is_equal_at_every_boundary() -> None:
    cells = {row[0]: row[1] for row in boundaries.pipeline(dataclasses.replace(SMALL, prompts=1)).rows}
    assert int(cells["boundaries that ran ahead"]) > 0
    assert cells["of them bitwise equal"] == cells["boundaries that ran ahead"]


def test_the_conditional_lookup_is_that_of_a_real_round() -> None:
    """Within 6 standard errors over the seeds; the defect is further off than both errors together."""
    place = conditional.worst_place(Settings(threads=1, prompts=6, max_tokens=64))
    assert place.exact - place.rewritten > 0.02
    by_history, rewritten, kept = (float(row[3]) for row in conditional.table_of(place, SMALL.seeds).rows)
    assert max(abs(by_history), abs(rewritten), abs(kept)) < 6


def test_lookup_counts_add_up() -> None:
    llm = engine(SMALL, **drafting.LOOKUP)
    seen = drafting.counted(llm, ["Copy this text exactly:\nHoney is sweet. Honey is golden."], [drawn(SMALL, 1)])
    assert 0 < seen.taken <= seen.matches <= seen.rounds
    assert 0 <= seen.accepted <= seen.verified


def _repeat(tokens: tuple[int, ...], finish: str = "stop") -> Repeat:
    stamps = tuple(float(second) for second in range(1, len(tokens) + 1))
    return Repeat((PromptRun("p", tokens, finish, 0.0, stamps, (1,) * (len(tokens) - 1)),), 0, ())


def test_rounds_are_timed_over_the_same_tokens_to_a_natural_stop() -> None:
    same = [_repeat((1, 2, 3)), _repeat((1, 2, 3))]
    assert len(rounds.require_same_work({"a": same, "b": same})) == 64
    with pytest.raises(AssertionError, match="token 2: 4, not 3"):
        rounds.require_same_work({"a": same, "b": [_repeat((1, 2, 4))]})
    with pytest.raises(AssertionError, match="ended by 'length'"):
        rounds.require_same_work({"a": [_repeat((1, 2), "length")]})


def test_the_two_sets_of_gpus_are_never_pooled() -> None:
    latency = published("latency")
    rows = [row for row in rounds.published_rows() if PUBLISHED in row[0]]
    assert [row[1] for row in rows] == [
        f"{latency[gpus][prompt]:.3f}" for gpus in ("gpus_0_3", "gpus_4_7") for prompt in ("prompt_1k", "mbpp28")
    ]


def test_an_unknown_table_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["no-such-table"])
    assert ended.value.code == 2
    assert "there is no table 'no-such-table'; choose from loss, kv," in capsys.readouterr().err
