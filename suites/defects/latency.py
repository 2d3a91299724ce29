"""Ways in which a latency figure goes wrong while every number still looks plausible."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from suites.defects import Defect
from suites.latency.figures import PromptRun, Runs

_FIGURES = "suites/latency/test_figures.py"


def _first_token_in_the_round(_: Callable[[PromptRun], float]) -> Callable[[PromptRun], float]:
    return lambda run: run.token_ts[-1] - run.arrival_ts


def _rounds_are_tokens(_: Callable[[Runs], int]) -> Callable[[Runs], int]:
    return lambda runs: sum(len(run.token_ids) - 1 for run in runs)


def _mean_of_prompt_means(original: Callable[[Runs], float]) -> Callable[[Runs], float]:
    return lambda runs: statistics.mean(original([run]) for run in runs)


def _any_end_will_do(_: Callable[[Runs], None]) -> Callable[[Runs], None]:
    return lambda runs: None


def _hash_of_counts(_: Callable[[Runs], str]) -> Callable[[Runs], str]:
    return lambda runs: str([len(run.token_ids) for run in runs])


def _only_the_first_repeat(original: Callable[[Sequence[Runs], str], str]) -> Callable[[Sequence[Runs], str], str]:
    return lambda repeats, what: original(repeats[:1], what)


def _nothing_seen(_: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return list


def _fit_library(_: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
    return lambda library: []


def _unobserved(_: Callable[[object], list[str]]) -> Callable[[object], list[str]]:
    return lambda llm: []


DEFECTS = (
    Defect(
        name="latency-first-token-in-round",
        description="the time to the first token is counted as decoding",
        scope="latency",
        owner="suites.latency.figures",
        attribute="decode_seconds",
        spoil=_first_token_in_the_round,
        must_go_red=(
            f"{_FIGURES}::test_published_runs",
            f"{_FIGURES}::test_prefill_and_the_first_token_are_outside_the_round",
        ),
    ),
    Defect(
        name="latency-token-for-round",
        description="a round that emits five tokens is counted as five rounds",
        scope="latency",
        owner="suites.latency.figures",
        attribute="rounds",
        spoil=_rounds_are_tokens,
        must_go_red=(f"{_FIGURES}::test_published_runs",),
    ),
    Defect(
        name="latency-mean-of-means",
        description="a repeat's figure is the mean of its prompts' means: a short prompt weighs as much as a long one",
        scope="latency",
        owner="suites.latency.figures",
        attribute="round_ms",
        spoil=_mean_of_prompt_means,
        must_go_red=(f"{_FIGURES}::test_a_repeat_is_one_number_over_its_prompts",),
    ),
    Defect(
        name="latency-length-stop-accepted",
        description="a text that was cut by max_tokens is timed as if it had ended",
        scope="latency",
        owner="suites.latency.control",
        attribute="require_natural_stop",
        spoil=_any_end_will_do,
        must_go_red=(f"{_FIGURES}::test_a_length_stop_is_refused",),
    ),
    Defect(
        name="latency-hash-of-counts",
        description="the token control covers how many tokens there were, not which",
        scope="latency",
        owner="suites.latency.figures",
        attribute="tokens_sha256",
        spoil=_hash_of_counts,
        must_go_red=(
            f"{_FIGURES}::test_hash_is_over_little_endian_int32",
            f"{_FIGURES}::test_different_tokens_are_refused_by_name",
        ),
    ),
    Defect(
        name="latency-unequal-hash-compared",
        description="only the first repeat is looked at, so times of different texts are put side by side",
        scope="latency",
        owner="suites.latency.control",
        attribute="require_same_tokens",
        spoil=_only_the_first_repeat,
        must_go_red=(f"{_FIGURES}::test_different_tokens_are_refused_by_name",),
    ),
    Defect(
        name="latency-profiler-unseen",
        description="the worker never asks whether it is traced or profiled",
        scope="latency",
        owner="suites.latency.fitness",
        attribute="unfit_reasons",
        spoil=_nothing_seen,
        must_go_red=(
            "suites/latency/test_unprofiled.py::test_a_worker_that_is_watched_says_so",
            "suites/latency/test_unprofiled.py::test_hooks_are_seen",
        ),
    ),
    Defect(
        name="latency-debug-build-timed",
        description="a native library with a sanitizer or without optimisation is timed as if it were the product",
        scope="latency",
        owner="suites.latency.fitness",
        attribute="library_reasons",
        spoil=_fit_library,
        must_go_red=("suites/latency/test_unprofiled.py::test_a_debug_or_sanitized_library_is_seen",),
    ),
    Defect(
        name="latency-observer-timed",
        description="an observer of every round is no reason against timing the engine",
        scope="latency",
        owner="suites.latency.fitness",
        attribute="engine_reasons",
        spoil=_unobserved,
        must_go_red=("suites/latency/test_unprofiled.py::test_whoever_watches_the_rounds_is_seen",),
    ),
)
