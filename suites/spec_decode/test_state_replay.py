"""Commit k and continue equals replay from scratch, and a changed restart is told apart from the same one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.diagnostics.drift import compare, drift
from engine.diagnostics.forced import PROBS, ForcedRun, config_of, force
from engine.diagnostics.replay import ReplayReport, ReplayRound, random_rounds, replay
from engine.diagnostics.snapshot import Snapshot, first_difference, snapshot
from engine.errors import InputError
from engine.llm import LLM
from engine.loading import LoadedModel
from engine.request import SamplingParams
from engine.state.sequence import SequenceState
from suites.recording import Record
from suites.spec_decode.conftest import EngineOf

pytestmark = pytest.mark.group("state replay")

PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7]
ANCHOR = 14
# Two states in each of six layers, keys and values in each of two, the logits.
TENSORS = 6 * 2 + 2 * 2 + 1
GENEROUS = {"draft": "lookup", "draft_tokens": 15, "kv_cache_tokens": 1600}


def replayed(llm: LLM, rounds: list[ReplayRound], prompt: list[int] = PROMPT) -> ReplayReport:
    return replay(llm.model, prompt, ANCHOR, rounds)


@pytest.mark.parametrize("drafts", [1, 3, 7, 15])
@pytest.mark.parametrize("seed", range(2))
def test_random_patterns(seed: int, drafts: int, quasar: Path, engine_of: EngineOf, record: Record) -> None:
    """Every accepted count of 0..K comes up; keys, values, windows, matrices and logits, bit for bit."""
    llm = engine_of(quasar, **GENEROUS)
    rounds = max(6, drafts + 1)
    report = replayed(llm, random_rounds(seed, llm.runner.vocab_size, rounds, drafts))
    assert report.equal, f"round {report.failed_round}: {report.difference}"
    assert report.tensors == rounds * TENSORS
    record.metric("tensors compared", report.tensors, "tensor")


@pytest.mark.parametrize("accepted", range(8))
def test_each_count_twice_in_a_row(accepted: int, hybrid: Path, engine_of: EngineOf) -> None:
    rounds = [replace(one, accepted=accepted) for one in random_rounds(accepted, 99, 2, 7)]
    report = replayed(engine_of(hybrid, **GENEROUS), rounds)
    assert report.equal, f"round {report.failed_round}: {report.difference}"


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8, 16])
def test_every_block_size(block_size: int, hybrid: Path, engine_of: EngineOf) -> None:
    """Rounds that begin, end and are cut at every offset of a block."""
    llm = engine_of(hybrid, **GENEROUS, block_size=block_size)
    report = replayed(llm, random_rounds(block_size, 99, 9, 7))
    assert report.equal, f"round {report.failed_round}: {report.difference}"


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_prompts_shorter_than_the_convolution(length: int, hybrid: Path, engine_of: EngineOf) -> None:
    """The window of a young sequence still holds zeros of the beginning."""
    report = replayed(engine_of(hybrid, **GENEROUS), random_rounds(length, 99, 6, 4), PROMPT[:length])
    assert report.equal, f"round {report.failed_round}: {report.difference}"


@pytest.mark.parametrize("kv_cache_dtype", ["float16", "fp8_e4m3", "fp8_e5m2"])
def test_every_cache_format(kv_cache_dtype: str, quasar: Path, engine_of: EngineOf) -> None:
    llm = engine_of(quasar, **GENEROUS, kv_cache_dtype=kv_cache_dtype)
    report = replayed(llm, random_rounds(3, llm.runner.vocab_size, 3, 7))
    assert report.equal, f"round {report.failed_round}: {report.difference}"
    assert report.tensors == 3 * TENSORS


@pytest.mark.parametrize(
    ("tensor", "layer"),
    [("keys", 3), ("values", 3), ("convolution window", 0), ("convolution window", 2), ("recurrent state", 1)],
)
def test_one_changed_element_is_named(
    tensor: str, layer: int, hybrid: Path, engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: an element of one layer is moved after the second round of the replayed sequence alone."""
    calls: list[SequenceState] = []

    def spoilt(model: LoadedModel, sequence: SequenceState) -> Snapshot:
        found = snapshot(model, sequence)
        calls.append(sequence)
        if len(calls) == 4:
            found[f"layer {layer} {tensor}"].view(-1)[7] += 0.5
        return found

    monkeypatch.setattr("engine.diagnostics.replay.snapshot", spoilt)
    report = replayed(engine_of(hybrid, **GENEROUS), random_rounds(0, 99, 4, 7))
    assert report.failed_round == 1
    assert report.difference is not None
    assert report.difference.tensor == f"layer {layer} {tensor}"
    assert report.difference.count == 1
    assert report.difference.largest == pytest.approx(0.5, abs=2.0**-20)  # fp32 rounds the sum


def test_rounds_that_do_not_fit_are_refused(hybrid: Path, engine_of: EngineOf) -> None:
    llm = engine_of(hybrid, **GENEROUS)
    with pytest.raises(InputError, match=r"two sequences of \d+ tokens and rounds of 16 rows do not fit"):
        replayed(llm, random_rounds(0, 99, 200, 15))
    with pytest.raises(InputError, match=r"rounds of 201 rows do not fit .* and 128 logit rows"):
        replayed(llm, random_rounds(0, 99, 1, 200))
    assert llm.pool.num_free == llm.pool.num_blocks - 1


def test_first_difference_tells_bits_apart() -> None:
    """NaN equals itself, -0 is not +0, other dtypes are compared by value, other shapes are no comparison."""
    one = {"a": torch.tensor([[1.0, float("nan"), -0.0]])}
    assert first_difference(one, {"a": one["a"].clone()}) is None
    signed = first_difference(one, {"a": torch.tensor([[1.0, float("nan"), 0.0]])})
    assert signed is not None
    assert signed.coordinate == (0, 2)
    assert first_difference({"a": torch.ones(2)}, {"a": torch.ones(2, dtype=torch.float16)}) is None
    with pytest.raises(ValueError, match=r"a: shapes \(2,\) and \(3,\)"):
        first_difference({"a": torch.ones(2)}, {"a": torch.ones(3)})
    with pytest.raises(ValueError, match="different names"):
        first_difference({"a": torch.ones(2)}, {"b": torch.ones(2)})


RUN = ForcedRun(
    prompt="ab cd ab",
    tokens=(),
    continue_by=16,
    model=None,
    settings={"threads": 2},
    temperature=1.0,
    top_k=0,
    top_p=0.95,
)


def test_two_fresh_processes_are_the_same(quasar: Path, record: Record) -> None:
    """The A/A control, without which no drift can be put down to a switch."""
    report = drift(replace(RUN, model=str(quasar)))
    record.metric("largest TV between two processes", max(report.tv), "1", better="lower")
    assert report.equal, f"{report.difference}; largest TV {max(report.tv)}"
    assert len(report.tokens) == len(report.tv) > RUN.continue_by


@pytest.mark.parametrize(
    ("switch", "first"),
    [
        ("kv_cache_dtype=float16", "layer 3 keys"),
        ("threads=1", None),
        ("block_size=5", None),
        ("prefill_chunk=3", None),
    ],
)
def test_a_switch_shows_in_the_first_tensor_it_reaches(switch: str, first: str | None, hybrid: Path) -> None:
    """A cache format moves the keys of the first attention layer; threads, blocks and chunks move nothing at all."""
    run = replace(RUN, model=str(hybrid))
    params = SamplingParams(temperature=1.0, top_p=0.95)
    tokens = tuple(PROMPT + PROMPT)
    one, other = (force(LLM(config_of(run, setting)), tokens, params) for setting in ("", switch))
    report = compare(one, other, tokens, switch)
    assert (report.difference.tensor if report.difference else None) == first
    assert report.equal == (first is None)
    assert (max(report.tv) > 0) == (first is not None)


def test_a_moved_law_is_measured_per_position() -> None:
    """A quarter of the mass goes from one token to another after the second token, and a token is lost there."""
    law = np.array([[0.5, 0.5, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
    moved = law.copy()
    moved[1] = [1.0, 0.0, 0.0]
    tensors = {"layer 0 keys": np.ones(3, np.float32)}
    report = compare({**tensors, PROBS: law}, {**tensors, PROBS: moved}, (1, 2, 3), "")
    assert report.tv == (0.0, 0.25, 0.0)
    assert report.supports_differ == (1,)
    assert report.difference is not None
    assert report.difference.tensor == PROBS
    assert report.difference.coordinate == (1, 0)


@pytest.mark.parametrize("switch", ["kv_cache_dtype", "speed=9", "=1"])
def test_switches_that_mean_nothing_are_refused(switch: str) -> None:
    with pytest.raises(InputError, match="allowed: NAME=VALUE with NAME of kv_cache_dtype, threads"):
        config_of(RUN, switch)
