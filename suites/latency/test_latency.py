"""Unprofiled rounds of SmolLM2: every repeat a process, every time tied to the tokens it was taken on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from suites.latency import control, figures
from suites.latency.arms import load_arms
from suites.latency.repeats import Repeat
from suites.recording import Record

MIB = 1024 * 1024
MOST_RESIDENT_BYTES = 1024 * MIB

Repeats = Callable[[str], tuple[Repeat, ...]]


@pytest.mark.parametrize("arm", load_arms())
def test_round(arm: str, repeats: Repeats, record: Record) -> None:
    """Nothing is recorded before all repeats did the same work and ended by themselves.

    An arm with a control is timed only if it emits that arm's tokens: an option that changes them is no optimisation.
    """
    record.group(arm)
    measured = repeats(arm)
    for repeat in measured:
        control.require_natural_stop(repeat.runs)
    control.require_same_tokens([repeat.runs for repeat in measured], f"{arm}: repeat")
    runs = measured[0].runs
    control_arm = load_arms()[arm].control
    if control_arm:
        control.require_same_tokens([repeats(control_arm)[0].runs, runs], f"{arm} against {control_arm}")
    for repeat in measured:
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
