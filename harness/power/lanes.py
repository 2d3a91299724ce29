"""Trials side by side: one thread per lane, each lane on its own cores, one results file."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.power.study import append, result_line
from harness.power.trial import OutOfTime, Setup, run_trial
from harness.power.workers import workers


@dataclass(frozen=True)
class Lanes:
    """Which cores each lane has, and where its repeats come from."""

    root: Path
    cores: tuple[tuple[int, ...], ...]
    environment: Mapping[str, str]
    forked: bool


def side_by_side(
    setup: Setup, left: list[tuple[int, int]], lanes: Lanes, results: Path, say: Callable[[str], None]
) -> None:
    """One thread per lane takes the next trial until none is left, the time is over or a worker fails."""
    waiting: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for trial in left:
        waiting.put(trial)
    writing = threading.Lock()
    failures: list[HarnessError] = []

    def work(cores: tuple[int, ...]) -> None:
        try:
            with workers(lanes.root, cores, lanes.environment, forked=lanes.forked) as lane:
                while not failures:
                    delay, index = waiting.get_nowait()
                    result = run_trial(setup, lane, delay, index, cores)
                    with writing:
                        append(results, result_line(result))
                    said = f"{100 * (result.ratio - 1):+.2f} % in {result.pairs} pairs, {result.seconds:.0f} s"
                    rivals = f"{result.mann_whitney}, {result.mean_threshold}"
                    say(f"{delay} % trial {index}: {result.ours} ({said}); {rivals}")
        except (queue.Empty, OutOfTime):
            return
        except HarnessError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(cores,)) for cores in lanes.cores]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        setup.stop.set()  # the trials under way end with the process that runs now
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]
