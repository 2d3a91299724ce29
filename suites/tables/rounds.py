"""Medians of unprofiled rounds: E4M3 keys and values, FP32 logits, context pipeline off (control) and on (optimised).

The worker of the latency scope runs them. A repeat is a process, the two arms take turns in being first, and nothing is
said of a time before every repeat of both arms has emitted the same tokens and ended by itself.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from suites.latency import control, figures
from suites.latency.arms import load_arms
from suites.latency.repeats import Repeat, run_once
from suites.tables.carried import Settings
from suites.tables.published import published
from suites.tables.table import PUBLISHED, Table

ARMS_FILE = Path(__file__).with_name("arms.toml")
WARM_UPS = 1


def rounds(settings: Settings) -> Table:
    """One median an arm over its repeats, each prompt by itself, beside the two published sets of GPUs."""
    measured = repeats_of(settings.repeats)
    digest = require_same_work(measured)
    rows = []
    for arm, repeats in measured.items():
        for index, run in enumerate(repeats[0].runs):
            times = [figures.round_ms([repeat.runs[index]]) for repeat in repeats[WARM_UPS:]]
            rows.append(
                (
                    f"{arm}, `{run.prompt}`, here",
                    f"{statistics.median(times):.3f}",
                    ", ".join(f"{time:.2f}" for time in times),
                    f"{len(run.token_ids)}",
                    f"{run.rounds}",
                    f"{figures.emitted_per_round([run]):.3f}",
                    run.finish,
                )
            )
    unfit = sorted({reason for repeats in measured.values() for repeat in repeats for reason in repeat.unfit})
    return Table(
        "Rounds: E4M3 keys and values, FP32 logits, medians over repeats",
        ("", "ms a round", f"the {settings.repeats} repeats", "tokens", "rounds", "emitted a round", "finish"),
        (*rows, *published_rows()),
        (
            f"CPU, 2 threads, T = 1, top-k 20, top-p 0.95; a warm-up and {settings.repeats} repeats, each a process.",
            f"Token hash of every repeat of both arms: `{digest[:16]}`.",
            "On a CPU the pipeline runs in order with the rest: no gain is to be expected.",
            "The published arms ran on two sets of GPUs that must not be pooled.",
            *(f"Unfit for timing: {reason}." for reason in unfit),
        ),
    )


def repeats_of(repeats: int) -> dict[str, list[Repeat]]:
    """Every arm's warm-up and repeats, in order."""
    arms = list(load_arms(ARMS_FILE))
    measured: dict[str, list[Repeat]] = {arm: [] for arm in arms}
    for number in range(WARM_UPS + repeats):
        turned = arms if number % 2 == 0 else arms[::-1]
        for arm, repeat in run_once(["--arms-file", str(ARMS_FILE), *turned]).items():
            measured[arm].append(repeat)
    return measured


def require_same_work(measured: dict[str, list[Repeat]]) -> str:
    """The hash of the tokens of every repeat of every arm. AssertionError for one that differs or did not stop."""
    runs = [repeat.runs for repeats in measured.values() for repeat in repeats]
    for one in runs:
        control.require_natural_stop(one)
    return control.require_same_tokens(runs, "repeat")


def published_rows() -> list[tuple[str, ...]]:
    """The published medians, each set of GPUs by itself."""
    latency = published("latency")
    return [
        (f"optimised, {prompt}, GPUs {gpus.removeprefix('gpus_').replace('_', '-')}, {PUBLISHED}", f"{ms:.3f}")
        + ("",) * 4
        + (latency[gpus].get("finish", ""),)
        for gpus in ("gpus_0_3", "gpus_4_7")
        for prompt, ms in latency[gpus].items()
        if isinstance(ms, float)
    ]
