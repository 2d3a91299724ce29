"""Unprofiled rounds of SmolLM2: every repeat a process, every time tied to the tokens it was taken on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from suites.latency import control, figures, gpus
from suites.latency.arms import gpus_needed, load_arms
from suites.latency.repeats import Repeat
from suites.recording import Record

MIB = 1024 * 1024
MOST_RESIDENT_BYTES = 1024 * MIB
RESAMPLES = 10_000

Repeats = Callable[[str], tuple[Repeat, ...]]


@pytest.mark.parametrize("arm", load_arms())
def test_round(arm: str, repeats: Repeats, record: Record) -> None:
    """Nothing is recorded before all repeats did the same work and ended by themselves.

    An arm with a control is timed only if it emits that arm's tokens: an option that changes them is no optimisation.
    """
    record.group(arm)
    _require_gpus(arm, record)
    measured = repeats(arm)
    for repeat in measured:
        control.require_natural_stop(repeat.runs)
    control.require_same_tokens([repeat.runs for repeat in measured], f"{arm}: repeat")
    runs = measured[0].runs
    control_arm = load_arms()[arm].control
    if control_arm:
        control.require_same_tokens([repeats(control_arm)[0].runs, runs], f"{arm} against {control_arm}")
    on_the_host = load_arms()[arm].device == "cpu"  # a CUDA context alone is larger
    for repeat in measured if on_the_host else ():
        assert repeat.peak_rss_bytes < MOST_RESIDENT_BYTES, f"{repeat.peak_rss_bytes / MIB:.0f} MiB resident"

    for reason in sorted({reason for repeat in measured for reason in repeat.unfit}):
        record.unfit(f"worker: {reason}")
    record.tokens(
        "tokens",
        [run.token_ids for run in runs],
        [run.finish for run in runs],
        rounds=figures.rounds(runs),
        acceptance_histogram=figures.emission_histogram(runs),
    )
    record.metric("rounds", figures.rounds(runs), "round", better="lower")
    record.metric("emitted per round", figures.emitted_per_round(runs), "token/round", better="higher")
    record.samples(
        "round",
        [figures.round_ms(repeat.runs) for repeat in measured],
        "ms",
        control="tokens",
        rounds=[figures.round_times_ms(repeat.runs) for repeat in measured],
    )
    record.samples("time to first token", [figures.ttft_ms(r.runs) for r in measured], "ms", control="tokens")
    record.samples(
        "decode rate",
        [figures.decode_tokens_per_second(repeat.runs) for repeat in measured],
        "token/s",
        better="higher",
        control="tokens",
    )
    record.samples("peak resident memory", [repeat.peak_rss_bytes / MIB for repeat in measured], "MiB")


@pytest.mark.group("two GPUs")
def test_rounds_over_two_gpus_beside_one(repeats: Repeats, record: Record) -> None:
    """The same tokens on one set of GPUs: the ratio of the medians of a round, with its 95 % bootstrap interval.

    A round of a small model is mostly launches, and two sums a layer come on top: this is the price of that.
    """
    one, two = "smollm2-gpu", "smollm2-two-gpus"
    _require_gpus(two, record)
    control.require_same_tokens([repeats(one)[0].runs, repeats(two)[0].runs], f"{two} against {one}")
    times = {arm: [figures.round_ms(repeat.runs) for repeat in repeats(arm)] for arm in (one, two)}
    ratio, low, high = _ratio_of_medians(times[two], times[one])
    record.metric("ratio of the medians, two GPUs over one", ratio, "ratio", better="lower", exact=False)
    record.metric("its interval from", low, "ratio", exact=False)
    record.metric("its interval to", high, "ratio", exact=False)


def _ratio_of_medians(over: list[float], under: list[float]) -> tuple[float, float, float]:
    """The ratio, and the 2.5 % and 97.5 % points of its bootstrap over repeats."""
    rng = np.random.default_rng(0)
    sides = [np.array(values) for values in (over, under)]
    drawn = [np.median(side[rng.integers(0, len(side), (RESAMPLES, len(side)))], axis=1) for side in sides]
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return float(np.median(sides[0]) / np.median(sides[1])), float(low), float(high)


def _require_gpus(arm: str, record: Record) -> None:
    """End the case as NOT_RUN where there are fewer CUDA devices than the arm takes."""
    needed, there = gpus_needed(load_arms()[arm]), gpus.count()
    if there < needed:
        record.not_run(f"needs {needed} CUDA devices, there are {there}")


@pytest.mark.group("control")
def test_lookup_changes_no_greedy_token(repeats: Repeats) -> None:
    """Drafting may only change how fast the same text comes."""
    plain, lookup = repeats("greedy-plain"), repeats("greedy-lookup")
    control.require_same_tokens([plain[0].runs, lookup[0].runs], "greedy, lookup on")


@pytest.mark.group("control")
def test_a_batch_changes_no_token(repeats: Repeats) -> None:
    """Rows of a batch do not know of each other: the same texts come whether prompts run alone or together."""
    alone, together = repeats("greedy-plain"), repeats("greedy-batch")
    control.require_same_tokens([alone[0].runs, together[0].runs], "greedy, batch of 3")


@pytest.mark.group("control")
def test_lookup_accepts_drafts(repeats: Repeats) -> None:
    """The prompt set has repetition in it: a round emits more than one token on average."""
    runs = repeats("greedy-lookup")[0].runs
    assert max(count for run in runs for count in run.emitted) > 1
    assert figures.rounds(runs) < figures.rounds(repeats("greedy-plain")[0].runs)
