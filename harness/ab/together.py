"""Two workers alive together that take turns, round by round: the pipes between them, and how both end.

Each gets ``--turns IN,OUT``, its ends of two pipes; what is written into one side's IN is its right to make a step. We
keep no end, so that the death of one side is seen by the other, which then goes on alone. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from harness.ab.errors import RepeatError
from harness.ab.repeat import Launch, Repeat, end, finish, read, repeat_name, start

TURN = b"t"
Printed = tuple[bytes, dict[str, Repeat]]


def run_together(launches: Sequence[Launch], arms: Sequence[str], labels: Sequence[str]) -> list[Printed]:
    """One repeat of each of two launches, the first of which makes the first step: what they printed, and figures.

    ``RepeatError`` of the one that failed, if one did: the other ends by itself first. If both did, of the first.
    """
    who = [f"repeat {label} of {launch.side}" for label, launch in zip(labels, launches, strict=True)]
    started = time.monotonic()
    workers = _start(launches, arms, who)
    answers: list[bytes | BaseException] = [b"", b""]

    def wait(place: int) -> None:
        try:
            answers[place] = finish(workers[place], launches[place].timeout_s, who[place])
        except BaseException as error:  # noqa: BLE001 - it is raised again below, by the thread that asked
            answers[place] = error

    threads = [threading.Thread(target=wait, args=(place,)) for place in (0, 1)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
        raise
    ended = time.monotonic()
    found = []
    for place, answer in enumerate(answers):
        if isinstance(answer, BaseException):
            raise answer
        repeats = read(answer, arms, who[place], repeat_name(labels[place], arms), started, ended)
        if not all(repeat.turns for repeat in repeats.values()):
            raise RepeatError(f"{who[place]}: it took no turns with the other side", "say --whole for such a worker")
        found.append((answer, repeats))
    return found


def _start(launches: Sequence[Launch], arms: Sequence[str], who: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Both workers, with the turn waiting in the first one's pipe."""
    (first_in, first_go), (second_in, second_go) = os.pipe(), os.pipe()
    ends = [(first_in, second_go), (second_in, first_go)]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        os.write(first_go, TURN)
        for launch, own, name in zip(launches, ends, who, strict=True):
            workers.append(start(launch, [*arms, "--turns", f"{own[0]},{own[1]}"], name, own))
    except BaseException:
        for worker in workers:
            end(worker)
        raise
    finally:
        for descriptor in (first_in, first_go, second_in, second_go):
            os.close(descriptor)
    return workers
