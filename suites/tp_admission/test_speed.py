"""Rounds of SmolLM2 over two GPUs beside one: each repeat a run of its own, both kinds in turn, tokens first.

A round of a small model is mostly launches, and two sums a layer come on top: what is kept here is the price of that,
on one set of GPUs, tied to the tokens.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from engine.config import EngineConfig
from suites.recording import Record
from suites.tp_admission import nccl_jobs
from suites.tp_admission.nccl_jobs import TimedText
from suites.tp_admission.on_ranks import on_ranks
from suites.tp_admission.smollm2 import smollm2_path
from suites.tp_admission.test_nccl import require_gpus

# Texts whose every token leads by more than float16 may close, and that end by themselves.
PROMPTS = ["Count from 1 to 20.", "List the months of the year."]
REPEATS = 5
RESAMPLES = 10_000


@pytest.mark.group("speed")
def test_rounds_over_two_gpus_beside_one(record: Record) -> None:
    """Equal tokens, then times: the ratio of medians with its 95 % bootstrap interval."""
    require_gpus(2, record)
    path = smollm2_path(record)
    make = partial(EngineConfig, model=path, pad_heads=True, device="cuda", max_model_len=512, max_sequences=1)
    repeats: dict[int, list[list[TimedText]]] = {1: [], 2: []}
    for index in range(REPEATS):
        for size in (1, 2) if index % 2 == 0 else (2, 1):
            answer, *_ = on_ranks(size, nccl_jobs.timed_texts, make(tp=size), PROMPTS, device="cuda")
            repeats[size].append(answer)
    expected = [text.token_ids for text in repeats[1][0]]
    for size, runs in repeats.items():
        for run in runs:
            assert [text.token_ids for text in run] == expected, f"other tokens over {size} GPUs"
            assert {text.finish for text in run} == {"stop"}
    rounds = sum(len(tokens) - 1 for tokens in expected)
    figures = {size: [_round_ms(run) for run in runs] for size, runs in repeats.items()}
    for size, runs in repeats.items():
        control = f"tokens over {size}"
        record.tokens(control, expected, ["stop"] * len(expected), rounds=rounds)
        times = [[ms for text in run for ms in text.round_times_ms] for run in runs]
        record.samples(f"round over {size}", figures[size], "ms", control=control, rounds=times)
    ratio, low, high = _ratio_of_medians(figures[2], figures[1])
    record.metric("ratio of the medians, two GPUs over one", ratio, "ratio", better="lower", exact=False)
    record.metric("its interval from", low, "ratio", exact=False)
    record.metric("its interval to", high, "ratio", exact=False)


def _round_ms(run: list[TimedText]) -> float:
    """Milliseconds a round over all texts of a repeat."""
    times = [ms for text in run for ms in text.round_times_ms]
    return sum(times) / len(times)


def _ratio_of_medians(over: list[float], under: list[float]) -> tuple[float, float, float]:
    """The ratio, and the 2.5 % and 97.5 % points of its bootstrap over repeats."""
    rng = np.random.default_rng(0)
    first, second = np.array(over), np.array(under)
    drawn = [
        np.median(values[rng.integers(0, len(values), (RESAMPLES, len(values)))], axis=1) for values in (first, second)
    ]
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(np.median(first) / np.median(second)), float(low), float(high)
