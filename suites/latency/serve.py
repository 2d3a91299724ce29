"""Repeats in forked processes, for studies of many: ``python -m suites.latency.serve``, a JSON request a line.

This process only imports the engine. Each request ``{"arms": [...], "delays": [0, 3]}`` forks a child a delay, which
loads the model, measures and ends; two take turns, the first of them begins. The answers are one line, a list. A repeat
is still a process with its own model, caches and threads, but the interpreter and its libraries lie where they lay in
the parent: what depends on that is not drawn anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suites.latency import delay
from suites.latency.arms import ARMS_FILE, load_arms
from suites.latency.turns import Turns
from suites.latency.worker import measure


def answer(arms: Sequence[str], delays: Sequence[object], arms_file: Path) -> list[Any]:
    """What each child measured, as a worker prints it; ``{"failed": status}`` of a child that did not end well."""
    pipes = [os.pipe(), os.pipe()] if len(delays) == 2 else []
    ends = [(pipes[0][0], pipes[1][1]), (pipes[1][0], pipes[0][1])] if pipes else [None] * len(delays)
    children = [_fork(arms, str(delay), arms_file, own, ends) for delay, own in zip(delays, ends, strict=True)]
    if pipes:
        os.write(pipes[0][1], b"t")
    _close(pipes)
    answers = []
    for child, reader in children:
        with os.fdopen(reader, "rb") as stream:
            written = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers.append({"failed": status} if status else json.loads(written))
    return answers


Ends = tuple[int, int]


def _fork(
    arms: Sequence[str], percent: str, arms_file: Path, own: Ends | None, ends: Sequence[Ends | None]
) -> tuple[int, int]:
    """Start a child that has only its ``own`` of the pipes' ``ends``; its process id, and where its answer comes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _close([pair for pair in ends if pair is not None and pair != own])
        os._exit(_child(arms, percent, arms_file, own, writer))
    os.close(writer)
    return child, reader


def _close(pairs: Sequence[Ends]) -> None:
    """Close both descriptors of each: an end that stays open would hide that a child has ended."""
    for descriptor in (one for pair in pairs for one in pair):
        os.close(descriptor)


def _child(arms: Sequence[str], percent: str, arms_file: Path, own: Ends | None, writer: int) -> int:
    """Measure and write; whatever happens ends here, since a child may not go on as a second server."""
    try:
        os.environ[delay.VARIABLE] = percent
        known = load_arms(arms_file)
        measured = measure([known[name] for name in arms], Turns(*own) if own else None)
        with os.fdopen(writer, "wb") as stream:
            stream.write(json.dumps(measured).encode())
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m suites.latency.serve", description=__doc__)
    parser.add_argument("--arms-file", type=Path, default=ARMS_FILE, help="where the arms are defined")
    options = parser.parse_args(argv)
    importlib.import_module("engine.llm")
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(answer(request["arms"], request["delays"], options.arms_file)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
