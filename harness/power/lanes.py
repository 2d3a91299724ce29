"""Trials side by side: a thread a lane, each lane on its own cores, one results file."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from harness.errors import HarnessError
from harness.power.study import append, result_line
from harness.power.trial import OutOfTime, Setup, run_trial


def side_by_side(
    setup: Setup, left: list[tuple[int, int]], lanes: list[tuple[int, ...]], results: Path, say: Callable[[str], None]
) -> None:
    """A thread a lane takes the next trial until none is left, the time is over or a worker fails."""
    waiting: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for trial in left:
        waiting.put(trial)
    writing = threading.Lock()
    failures: list[HarnessError] = []

    def work(cores: tuple[int, ...]) -> None:
        while not failures:
            try:
                delay, index = waiting.get_nowait()
                result = run_trial(setup, delay, index, cores)
            except (queue.Empty, OutOfTime):
                return
            except HarnessError as error:
                failures.append(error)
                return
            with writing:
                append(results, result_line(result))
            said = f"{100 * (result.ratio - 1):+.2f} % in {result.pairs} pairs, {result.seconds:.0f} s"
            say(f"{delay} % trial {index}: {result.ours} ({said}); {result.mann_whitney}, {result.mean_threshold}")

    threads = [threading.Thread(target=work, args=(cores,)) for cores in lanes]
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
