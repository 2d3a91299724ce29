"""Repeats of an arm, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suites.latency.figures import PromptRun

ROOT = Path(__file__).resolve().parents[2]
SECONDS_ALLOWED = 120


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one worker process measured for one arm."""

    runs: tuple[PromptRun, ...]
    peak_rss_bytes: int
    unfit: tuple[str, ...]


def run_worker(arguments: Sequence[str], environment: dict[str, str] | None = None) -> Any:
    """The JSON that a worker prints. AssertionError with the end of its stderr when it fails."""
    command = [sys.executable, "-m", "suites.latency.worker", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS_ALLOWED,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def run_once(arms: Sequence[str]) -> dict[str, Repeat]:
    """One repeat of arms that share a process, by arm."""
    return {answer["arm"]: _repeat(answer) for answer in run_worker(arms)}


def _repeat(answer: dict[str, Any]) -> Repeat:
    runs = tuple(
        PromptRun(
            prompt=run["prompt"],
            token_ids=tuple(run["token_ids"]),
            finish=run["finish"],
            arrival_ts=run["arrival_ts"],
            token_ts=tuple(run["token_ts"]),
            emitted=tuple(run["emitted"]),
        )
        for run in answer["runs"]
    )
    return Repeat(runs, answer["peak_rss_bytes"], tuple(answer["unfit"]))
